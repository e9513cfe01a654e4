"""Core NATS: one connection that reconnects, its subscriptions and requests, and the parser of the protocol.

Other packages use `connection`. A connection has one `link` at a time, a nats-py client that lives as long as its
socket. Subscriptions (`subscription`) and pending requests (`replies`) outlive the links. `access` handles credentials
and TLS. `nats_py` contains all code that depends on private names of nats-py.

`rebaser_client.jetstream` and programs that need NATS without JetStream use this package. It imports
`logs`, `backoff` and `task_groups` of `rebaser_client`, and `rebaser_core`. It does not depend on JetStream, but
`connection` reports an outage of the JetStream API (`api_outage`).
"""
