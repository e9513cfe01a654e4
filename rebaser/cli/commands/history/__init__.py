"""The commands that show the history of a change set, and that take edits back."""
