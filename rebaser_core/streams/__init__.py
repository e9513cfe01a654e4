"""The subjects, streams and consumers of an installation as data. A server creates those that are missing when it
starts."""
