"""Writes and reads the headers of commits, for readers that do not decode payloads.

Such readers are overviews of branches, the sweeper, and the garbage collection.
"""
