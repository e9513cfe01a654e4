"""The commands of `rebaser`. Each module defines the options, the help and the output of one or two commands.

Only `rebaser.cli.registry` and `rebaser.cli.registry_tools` import this package. They import the module of a command
when the command runs or its help is shown. The top-level imports of these modules must be quick, so that help appears
at once; a command imports the rest when it runs. The subpackages are `branching`, `history`, `observing`,
`running` and `maintenance`; the commands that read and edit values are in this package itself.
"""
