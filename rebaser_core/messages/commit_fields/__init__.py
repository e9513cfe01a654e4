"""Defines the wire formats of a commit's fields. `rebaser_core.messages.commit` combines them into the format of a
whole commit."""
