"""Bounds the attempts at work that may kill, hang or block its owner: requests, updates and pulls."""
