"""Defines the wire formats of the fields of a commit. `rebaser_core.messages.commit` combines them into the format of
a whole commit."""
