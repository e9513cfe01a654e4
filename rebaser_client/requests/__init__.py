"""Sends requests: stores them, publishes tasks, sends unanswered requests again, and tracks full queues.

`in_flight` limits how many requests are being stored at the same time. `sender` encodes and stores a request.
`task_publisher` then publishes the task of its change set. `resender` sends a request again if its answer was lost.
`backpressure` computes when a caller should retry after a queue was full. `many` does all of this for many requests in
one task. `outcomes` builds the errors that callers get.

`RebaserClient` and the dead letter box use this package; servers and the sweeper publish tasks with `publish_task`. It
imports `rebaser_client.jetstream`, `blobs`, `errors`, `logs` and `backoff`, and `rebaser_core`.
"""
