"""Decides queued requests: computes, from requests and the folded state, the decisions and the delta of one commit.

A `QueuedRequest` contains a request and all data that is needed to decide it, so `decide` does no I/O.
"""
