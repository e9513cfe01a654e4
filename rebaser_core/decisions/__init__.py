"""How queued requests are decided: from the folded state and the requests to the decisions and the delta of one commit.

A `QueuedRequest` contains a request and everything that the owner read to decide it, so `decide` needs no I/O.
"""
