"""`python -m rebaser` is `rebaser`."""

from rebaser.cli import main

if __name__ == "__main__":
    main()
