"""Explains why a change set waits, and why a value is stale or in error. These are pure functions from facts to
reasons.

`facts` describes what can be observed about a change set from outside; `rebaser_client.admin.explanations` gathers
these facts. `reasons` turns them into reasons, the most likely first. `values` explains one value of a state.

Clients and the command line use this package. It imports `state` and root modules of `rebaser_core`.
"""
