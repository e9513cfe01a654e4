"""Ordered consumers (ADR-17): the messages of a stream in order, each once, for the log and the request queues.

`consumer` reads; `position` decides where the next consumer starts and has no I/O; `requests` creates and deletes
consumers; `buffer` holds messages for a slow reader. Programs import `OrderedConsumer` from `rebaser_client.jetstream`.
This package imports `rebaser_client.nats` and `rebaser_client.jetstream.context`; nothing in `rebaser_client.jetstream`
imports it.
"""
