"""The rules of Rebaser without I/O, clock or randomness: messages, updates, decisions, the log and the folded state.

For `rebaser_client` and `rebaser`. Imports neither of them.
"""
