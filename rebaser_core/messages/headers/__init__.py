"""Writes and reads the headers of commits, for readers that do not decode payloads.

These are lists of branches, the sweeper and the garbage collection.
"""
