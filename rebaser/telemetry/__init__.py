"""Defines the metrics and traces of a server: the catalogue of metrics, their instruments, the functions that feed
them, and the spans.

Three rules avoid duplicate instrumentation. A rare occurrence has only a log event, because log events are counted. A
stage that takes time feeds its histogram and its debug event with one call. A state, such as the number of free slots,
has no counter: it is read when a scrape or a ping requests it. Label values come from closed sets; they never contain a
workspace, a change set, an id, or text that a user sent. The instruments belong to the process, because a scrape
describes a process.
"""
