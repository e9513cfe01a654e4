"""Serves one owned change set: runs its lifecycle, decides its requests, appends to its log, and updates its values.

`lifecycle` is the pure state machine, `actor` runs it, and `owner` turns its effects into I/O. An owner holds the task
(`lease`), reads and decides requests (`processor`, `request_reader`, `revert_reader`, `origin_reader`, `offer_reader`,
`tombstones`, `attempts`, `replies`), appends to the log (`commit_log`, `branch_fields`, `needed_blobs`),
runs dependent values updates (`serial_dvu`, `healing`, `known_functions`) and writes checkpoints (`checkpointer`).

The server creates owners. This package may import `rebaser.runtime`, `rebaser.dvu`, `rebaser_client` and
`rebaser_core`, and nothing else from `rebaser`.
"""
