"""Runs jobs on Spark for the owners of change sets: keeps a session open, schedules jobs, and sends code to executors.
All modules except `scheduler` do I/O.

Servers use this package, with one `engine.Engine` for all change sets; benchmarks also use it. It imports
`rebaser.dvu.wire`, `worker` (to send it to executors), `functions`, `compiled`, `planning` (to load its compiled code),
`rebaser.embedded`, the blob stores and the backoff of `rebaser_client`, and `rebaser_core`. `rebaser.dvu.update` uses
the engine only through a protocol.
"""
