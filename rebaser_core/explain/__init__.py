"""Explains why a change set waits, and why a value is what it is. Pure: facts in, reasons out.

`facts` describes what can be known of a change set from outside, `reasons` turns that into reasons, the most likely
first. `values` explains one value of a state. Those who gather facts: `rebaser_client.admin.explanations`.

For clients and the command line. Imports `state` and root modules of `rebaser_core`.
"""
