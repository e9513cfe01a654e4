"""Checks the documentation against the code: its programs run, its links have targets, its generated pages are
current."""
