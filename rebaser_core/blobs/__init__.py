"""The addresses of blobs, and the rules by which a garbage collection deletes blobs. No code here does I/O."""
