"""The code that runs on Spark's executors: it computes the nodes of a packet and returns those that changed.

`rebaser.dvu.spark` imports this package, to run it on the workers; it also uses `structure_cache` on the owner, which
shares a folder with the workers of an embedded Spark. `rebaser.dvu.planning` imports the limit on the inputs of a value
and, for `warm_up`, `evaluate_packet`. This package imports `rebaser.dvu.wire`, `functions`, `compiled` and
`rebaser_core`. Imports must stay cheap, because each worker process repeats them.
"""
