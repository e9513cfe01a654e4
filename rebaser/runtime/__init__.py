"""The parts that all owners of a server share, and the monitoring of the server itself.

`context` opens the shared parts: the connection, the stores, the Spark engine, the clocks. `shared_info` describes the
stream of requests to owners that are loading. `tail_cache` keeps commits that were copied for new change sets.
`request_deleter` and `dead_letters` move requests out of the queue. `stream_watch` recreates lost streams, `progress`
reports slow updates, `recent_updates` keeps how long updates took, `health` keeps the last failure, `reading` notes
what is read to load a change set, `watchdog` reports code that blocks the event loop, and `python_gc` shortens the
pauses of Python's garbage collector. `slots` computes how many change sets fit into memory, `concurrency` bounds
concurrent calls, and `forced_thresholds` is for tests that start processes.

`rebaser.server`, `rebaser.change_set` and `rebaser.sweeper` use this package. It may import `rebaser.settings`,
`rebaser.dvu`, `rebaser.embedded`, `rebaser_client` and `rebaser_core`; it never imports `rebaser.change_set`.
"""
