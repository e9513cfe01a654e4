"""How queued requests are decided: from the folded state and the requests to the decisions and the delta of one commit.

A `QueuedRequest` holds a request and all that its owner read to decide it, so `decide` needs no I/O.
"""
