"""The commands, one module each: options, help, and what they print.

`rebaser.cli.registry` and `rebaser.cli.registry_tools` register them. Only these two import this package, even for
`--help` and completion. So, at the top, its modules import only what is quick to import; each command imports the rest
when it runs. `bench_load` does the work of `bench`, and `doctor_installation` that of `doctor` without a change set.
"""
