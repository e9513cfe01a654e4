"""A price book on Rebaser. `book` defines the values, `functions` is the plug-in, `load` and `review` are commands."""
