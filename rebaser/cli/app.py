"""The root of the command line. `run` turns the result of a command, or its error, into an exit code.

Invariant: importing this module, with everything that it imports at the top, is quick.
"""

import os
import sys
from typing import Annotated

import typer

from rebaser import __version__
from rebaser.cli.env_vars import unknown_variables
from rebaser.cli.errors import DONE, FAILED, INTERRUPTED, explain, is_broken_pipe, silence_output
from rebaser.cli.options import examples
from rebaser.cli.output import console
from rebaser.cli.registry_tools import COMMANDS

app = typer.Typer(
    name="rebaser",
    cls=COMMANDS,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "REBASER"},
    epilog=examples(
        "rebaser demo                                        # a tour with real data",
        "rebaser dev                                         # run everything; then, in another terminal:",
        "rebaser enqueue shop draft --set price=9.5 --set qty=3 --derive total='price * qty' --wait derived",
        "rebaser get shop draft",
    ),
)


def _show_version(requested: bool) -> None:
    if requested:
        console.write_line(f"rebaser {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001 - the callback does the work
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version.", allow_from_autoenv=False
        ),
    ] = False,
) -> None:
    """Keep branches of a large graph of values correct while many people and programs edit them.

    Most options can also be set with an environment variable; the help of each option gives its name.
    """
    arguments: list[str] = context.obj or []
    if any(option in arguments for option in context.help_option_names):
        return  # help must appear quickly and without warnings
    for line in unknown_variables(os.environ, context.command):
        console.note(f"warning: {line}")


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code. Unexpected exceptions are not caught."""
    console.prepare_streams()
    try:
        arguments = arguments or ["--help"]
        code = app(arguments, prog_name="rebaser", standalone_mode=False, obj=arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except typer.Abort:
        return INTERRUPTED
    except (Exception, BaseExceptionGroup) as error:
        if is_broken_pipe(error):
            silence_output()
            return FAILED
        explained = explain(error)
        if explained is None:
            raise
        line, code = explained
        console.note(f"rebaser: {line}")
        if isinstance(error, OSError):
            silence_output()  # otherwise, the interpreter would try to write the rest of the output at exit, and fail
        return code
    return code if isinstance(code, int) else DONE
