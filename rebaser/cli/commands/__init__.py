"""The commands, one module each: options, help, and what they print.

`rebaser.cli.registry` and `rebaser.cli.registry_tools` register them; nothing else imports this package. They import
all of its modules whenever `rebaser` starts, also for `--help` and completion. So these modules import at the top only
what is quick to import; each command imports the rest when it runs. The rooms are `branching`, `history` and
`operation`; here are the commands that read and edit values.
"""
