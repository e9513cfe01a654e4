"""Messages between the owner of a change set and the workers of Spark: packets, results and structures, as bytes.

Used by both sides: `rebaser.dvu.planning` and `rebaser.dvu.spark` on the owner, `rebaser.dvu.worker` and
`rebaser.dvu.compiled` on the executors. It imports `rebaser_core` and nothing else of the product.
"""
