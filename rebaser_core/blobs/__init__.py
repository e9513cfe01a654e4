"""Computes the addresses of blobs, and decides which blobs a garbage collection deletes. Nothing here does I/O."""
