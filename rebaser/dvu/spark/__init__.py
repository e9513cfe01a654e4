"""The owner's side of Spark: sessions, jobs, and the code sent to executors. All modules do I/O, except `scheduler`.

Servers use this package, with one `engine.Engine` for all change sets; benchmarks also use it. It imports
`rebaser.dvu.wire`, `worker` (to send it to executors), `functions`, `compiled`, `planning` (to load its compiled code),
`rebaser.embedded`, the blob stores and the backoff of `rebaser_client`, and `rebaser_core`. `rebaser.dvu.update` knows
the engine only as a protocol.
"""
