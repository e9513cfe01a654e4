"""The commands that show what servers and change sets are doing, why a change set waits, and why a value is in
error."""
