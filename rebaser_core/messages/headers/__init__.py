"""Writes and reads the headers of commits, for readers that do not decode payloads.

Such readers are the sweeper, the garbage collector, and the code that lists branches.
"""
