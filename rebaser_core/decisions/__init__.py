"""Decides queued requests: computes the decisions and the delta of one commit from the requests and the folded state.

A `QueuedRequest` contains a request and all data that is needed to decide it, so `decide` does no I/O.
"""
