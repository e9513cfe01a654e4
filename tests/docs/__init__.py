"""Holds the documentation against the code: programs run, links lead somewhere, generated pages are current."""
