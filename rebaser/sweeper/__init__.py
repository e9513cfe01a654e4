"""The sweeper, which runs on one server of the fleet and finds change sets that need an owner but have no task.

`sweeper` publishes missing tasks, `debts` finds change sets whose update is due, `unroutable` moves requests whose
subject identifies no change set to the dead letters, `old_history` purges logs that no owner purges, and `closed` sends
requests to delete change sets that were closed long ago. `starting` creates the sweeper of a server.

`rebaser.server` uses this package. It may import `known_functions` and `checkpointer` of `rebaser.change_set`,
`rebaser.runtime`, `rebaser_client` and `rebaser_core`.
"""
