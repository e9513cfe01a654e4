"""The commands, one module each: options, help, and what they print. `rebaser.cli.app` registers them.

Only `rebaser.cli.app` imports this package, for `--help` and completion, too. At the top, its modules therefore import
only what is quick to import; the rest is imported where a command runs. `bench_load` and `doctor_installation` do the
work of `bench` and of `doctor` without a change set.
"""
