"""Explains, with pure functions, why a change set waits and why a value is stale or in error.

`facts` and `owner_facts` define what can be observed about a change set from outside.
`rebaser_client.admin.explanations` gathers these facts. `reasons` derives reasons from them, the most likely first.
`values` explains one value of a state.

Clients and the command line use this package. It imports `state` and root modules of `rebaser_core`.
"""
