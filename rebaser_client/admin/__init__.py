"""Administers an installation: creates its streams, reads its status, handles its dead letters.

`provisioning` creates the streams and the durable consumers. `servers` asks the servers for their identity and state.
`status` reads the overview of servers, change sets and streams. `stream_usage` reads the usage of the streams and the
size of their messages. `ack_stats` collects statistics about the acks of tasks. `dead_letters` finds, redrives and
drops dead letters. `explanations` gathers the facts from which `rebaser_core.explain` concludes why a change set waits.
`fleet` and `fleet_watch` observe the current activity of change sets, and the rates of requests and commits.

`RebaserClient`, servers and the command line use this package. It imports `rebaser_client.log`, `requests`,
`jetstream`, `nats`, `blobs`, `errors` and `backoff`, and `rebaser_core`.
"""
