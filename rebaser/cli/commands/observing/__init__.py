"""The commands that show what servers and change sets do, and why a change set waits or a value is in error."""
