"""Implements the rules of Rebaser: messages, updates, decisions, the log and the folded state.

Nothing here does I/O, reads a clock or uses randomness. `rebaser_client` and `rebaser` import this package, which
imports neither of them.
"""
