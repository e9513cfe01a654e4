"""Pull consumers (ADR-37, ADR-42): readers get messages without end, in batches, or for credit.

`state` decides, with `counts`, when to pull, and does no I/O. It returns `actions`, which `puller` carries out.
`batches` and `pull_consumer` contain the readers, `consumer` is the object that creates them, and `options` checks the
arguments of callers. Programs import the classes from `rebaser_client.jetstream`. `context` and `stream` of
`rebaser_client.jetstream` import this package, so it imports neither.
"""
