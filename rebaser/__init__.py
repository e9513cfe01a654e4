"""The Rebaser server, its dependent values update on Spark, and the command line."""

__version__ = "0.1.0"
