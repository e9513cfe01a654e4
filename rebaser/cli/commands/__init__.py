"""The commands, one module each: their options, help and output.

`rebaser.cli.registry` and `rebaser.cli.registry_tools` register them; nothing else imports this package. They import
all of its modules whenever `rebaser` starts, even for `--help` and completion. So the top-level imports of these
modules must be quick; each command imports the rest when it runs. The subpackages are `branching`, `history` and
`operation`; the commands that read and edit values are in this package itself.
"""
