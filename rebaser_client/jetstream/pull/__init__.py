"""Pull consumers (ADR-37, ADR-42): messages without end, in batches, or for credit.

`state`, with `counts`, decides when to pull and has no I/O; `actions` are what it asks for; `puller` carries them out.
`batches` and `pull_consumer` are the ways to read, `consumer` is the object that offers them, `options` checks what
callers ask for. Programs import the classes from `rebaser_client.jetstream`. `context` and `stream` of
`rebaser_client.jetstream` import this package, so it imports neither.
"""
