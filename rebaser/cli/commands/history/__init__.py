"""The commands that show the history of a change set, and that take parts of it back."""
