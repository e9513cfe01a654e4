"""Sends requests: stores them, publishes tasks, sends unanswered requests again, and tracks full queues.

`in_flight` bounds how many requests are stored at one time. `sender` encodes and stores a request. `task_publisher`
then publishes the task of its change set. `resender` sends a request again if its answer was lost. `backpressure`
computes when a caller should try again after a full queue. `many` does all of this for many requests in one task.
`outcomes` has the errors that callers get.

For `RebaserClient` and the dead letter box; servers and the sweeper publish tasks with `publish_task`. This package
imports `rebaser_client.jetstream`, `blobs`, `errors`, `logs` and `backoff`, and `rebaser_core`.
"""
