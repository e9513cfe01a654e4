"""The commands that show the history of a change set or revert edits."""
