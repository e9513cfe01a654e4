"""The subjects, streams and consumers of an installation as data. A server ensures that they exist when it starts."""
