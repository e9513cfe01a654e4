"""The sweeper finds work that no server owns. It runs on one server of the fleet.

`sweeper` publishes missing tasks, `debts` finds change sets that owe an update, and `unroutable` moves requests whose
subject names no change set to the dead letters.

Used by `rebaser.server`. This package may import `rebaser.change_set.known_functions`, `rebaser.runtime`,
`rebaser_client` and `rebaser_core`.
"""
