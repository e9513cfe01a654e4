"""Holds the documentation against the code: programs and sessions run, links lead somewhere, generated pages are current."""
