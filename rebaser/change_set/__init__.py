"""Serves one owned change set: runs its lifecycle, decides its requests, appends to its log, and updates its values.

`lifecycle` is the pure state machine, `actor` runs it, and `owner` turns its effects into I/O. An owner holds the task
(`lease`), decides requests (`processor`, `readers`, `attempts`, `replies`, `settling`; in `rounds`, many owners prepare
their commits together), appends to the log and writes checkpoints (`log`), runs dependent values updates (`serial_dvu`,
`healing`, `known_functions`), and keeps a branch up to date (`branch_puller`). After it has released the task, it
checks for remaining work (`recheck`).

The server creates owners. This package may import `rebaser.runtime`, `rebaser.dvu`, `rebaser_client` and
`rebaser_core`, and nothing else from `rebaser`.
"""
