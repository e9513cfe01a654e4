"""What runs on Spark's executors: computes the nodes of a packet and returns those that changed.

Only `rebaser.dvu.spark` imports from here, to run it on the workers. It also uses `structure_cache` on the owner, which
shares a folder with the workers of an embedded Spark. This package imports `rebaser.dvu.wire`, `functions`, `compiled`
and `rebaser_core`. Imports must stay light, because each worker process pays for them.
"""
