"""Ordered consumers (ADR-17): they deliver the messages of a stream in order, each once. The log and the request queues
are read this way.

`consumer` reads; `position` decides where the next consumer starts and has no I/O; `requests` creates and deletes
consumers; `buffer` holds messages for a slow reader. Programs import `OrderedConsumer` from `rebaser_client.jetstream`.
Only `rebaser_client/jetstream/__init__.py` imports this package.
"""
