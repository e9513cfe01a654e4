"""What the installation does now: one watch on it for all viewers, and the last minutes of a few numbers."""
