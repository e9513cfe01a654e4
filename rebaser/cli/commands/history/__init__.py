"""The commands that show the history of a change set, and those that revert edits."""
