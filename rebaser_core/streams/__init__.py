"""The subjects, streams and consumers of an installation as data. When a server starts, it creates missing streams and
consumers."""
