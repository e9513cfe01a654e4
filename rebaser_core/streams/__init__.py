"""Describes the subjects, streams and consumers of an installation as data. When a server starts, it creates the
missing streams and consumers."""
