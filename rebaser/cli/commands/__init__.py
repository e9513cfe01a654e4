"""The commands of `rebaser`. Each module defines the options, the help and the output of one or two commands.

Only `rebaser.cli.registry` and `rebaser.cli.registry_tools` import this package. They import a command's module when
the command runs or its help is shown. The module's top-level imports must be quick, so that help appears at once; the
command imports everything else when it runs. The subpackages are `branching`, `history`, `observing`, `running` and
`maintenance`; the commands that read and edit values are in this package itself.
"""
