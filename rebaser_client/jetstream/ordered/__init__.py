"""Ordered consumers (ADR-17): they deliver the messages of a stream in order, and each message once.

Rebaser reads its logs and request queues with ordered consumers. `consumer` receives the messages. `position` decides
where the next consumer starts, and does no I/O. `requests` creates and deletes consumers. `buffer` holds messages for a
slow reader. Programs import `OrderedConsumer` from `rebaser_client.jetstream`. Only
`rebaser_client/jetstream/__init__.py` imports this package.
"""
