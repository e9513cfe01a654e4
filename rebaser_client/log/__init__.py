"""Reads the logs of change sets.

`commits` reads commits. `reader` loads the state of a change set: a checkpoint, then the rest of the log. `positions`
parses positions in a log, such as `draft@2h`, and `origins` finds the log that contains a position. `changes` shows who
changed what, and compares states; `blame` finds who last defined a value, also in other change sets, and `scan` finds
the commits that defined a value, in bounded steps. `heads` reads the headers of the newest commit of every change set.
`branches` lists branches, and shows their changes; `branch_pages` lists them in pages. `undo` finds the request that an
undo reverts. `coverage` waits until derived values are up to date as of a commit. `entries` lists the messages of a
stream for people and tools.

Clients, servers, the doctor and the Spark data source use this package. It imports `rebaser_client.jetstream`, `blobs`,
`cooperative`, `errors`, `logs` and `backoff`, and `rebaser_core`.
"""
