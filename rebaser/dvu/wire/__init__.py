"""Encodes and decodes the messages between the owner of a change set and Spark's workers: packets, results, structures.

Both sides use this package: `rebaser.dvu.planning` and `rebaser.dvu.spark` on the owner, `rebaser.dvu.worker` and
`rebaser.dvu.compiled` on the executors. Within Rebaser, it imports only `rebaser_core`.
"""
