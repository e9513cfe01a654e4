"""Writes and reads the headers of commits.

They serve readers that do not decode payloads: the sweeper, the garbage collector, and the code that lists branches.
"""
