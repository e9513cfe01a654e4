"""Pull consumers (ADR-37, ADR-42): readers receive messages endlessly, in batches, or as far as their credit allows.

`state` and `counts` decide when to pull, and do no I/O. `state` returns `actions`, which `puller` carries out.
`batches` and `pull_consumer` contain the readers, `consumer` contains the object that creates them, and `options`
checks the arguments of callers. Programs import the classes from `rebaser_client.jetstream`. `context` and `stream` of
`rebaser_client.jetstream` import this package, so it imports neither.
"""
