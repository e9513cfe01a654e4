"""Runs the command line: `python -m rebaser` is the same as `rebaser`."""

from rebaser.cli import main

if __name__ == "__main__":
    main()
