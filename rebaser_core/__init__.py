"""The rules of Rebaser without I/O, clock or randomness: messages, updates, decisions, the log and the folded state.

`rebaser_client` and `rebaser` import this package; it imports neither of them.
"""
