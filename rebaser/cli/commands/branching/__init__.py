"""The commands that create, compare, apply and delete branches."""
