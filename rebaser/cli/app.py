"""Defines the commands and their help, and turns the result of every command into an exit code.

Invariant: this module and the modules it imports at the top are quick to import. Each command imports what it needs
when it runs.
"""

import os
import sys
from typing import Annotated

import typer

from rebaser import __version__
from rebaser.cli import console
from rebaser.cli.commands.bench import bench
from rebaser.cli.commands.demo import demo
from rebaser.cli.commands.dlq import dlq
from rebaser.cli.commands.doctor import doctor
from rebaser.cli.commands.enqueue import enqueue
from rebaser.cli.commands.functions import functions
from rebaser.cli.commands.get import get
from rebaser.cli.commands.list import list_
from rebaser.cli.commands.ping import ping
from rebaser.cli.commands.recompute import recompute
from rebaser.cli.commands.serve import dev, serve
from rebaser.cli.commands.status import status
from rebaser.cli.commands.tail import tail
from rebaser.cli.env_vars import unknown_variables
from rebaser.cli.errors import DONE, FAILED, INTERRUPTED, explain, is_broken_pipe, silence_output
from rebaser.cli.options import examples, with_access

app = typer.Typer(
    name="rebaser",
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

    Options can also be set by the environment variables that their help names.
    """
    arguments: list[str] = context.obj or []
    if any(option in arguments for option in context.help_option_names):
        return  # help must be quick and print no warnings
    for line in unknown_variables(os.environ, context.command):
        console.note(f"warning: {line}")


app.command(
    epilog=examples(
        "rebaser dev",
        "rebaser dev --port 4333 --data /tmp/rebaser",
    )
)(dev)
app.command(
    epilog=examples(
        "rebaser serve --nats nats://nats:4222 --spark sc://spark:15002",
        "REBASER_NATS_URL=nats://a:4222,nats://b:4222 rebaser serve --concurrency 200",
    )
)(with_access(serve))
app.command(
    epilog=examples(
        "rebaser enqueue shop draft --set price=9.5 --set qty=3 --derive total='price * qty' --wait derived",
        "rebaser enqueue shop draft --derive 'cart/total=`cart/1/price` * 2'",
        "rebaser enqueue shop draft --input p='cart/*/price' --derive 'cart/dear=p.filter(price, price > 9)'",
        "rebaser enqueue shop draft --set name='\"text\"' --unset price --remove qty",
        "rebaser enqueue shop draft --file updates.jsonl --wait derived",
        "rebaser get shop draft --updates | rebaser enqueue shop copy --file -",
        "",
        "Each line of a file is one of:",
        '{"op": "set", "id": "cart/1/price", "value": 9.5}',
        '{"op": "derive", "id": "cart/total", "function": "sum", "inputs": {"values": ["cart/1/price", "fee"]}}',
        '{"op": "derive", "id": "total", "function": "sum", "inputs": {"values": {"match": "cart/*/price"}}}',
        '{"op": "unset", "id": "cart/1/price"}',
        '{"op": "remove", "id": "cart/1/price"}',
    )
)(with_access(enqueue))
app.command(
    epilog=examples(
        "rebaser recompute shop draft --function company.tax --wait derived",
        "rebaser recompute shop draft",
    )
)(with_access(recompute))
app.command(
    epilog=examples(
        "rebaser get shop draft",
        "rebaser get shop draft total 'cart/*/price' --with-definitions",
        "rebaser get shop draft --json | jq 'select(.state == \"error\")'",
        "rebaser get shop draft --updates > updates.jsonl",
    )
)(with_access(get))
app.command(
    "list",
    epilog=examples(
        "rebaser list",
        "rebaser list shop",
        "rebaser list shop --json | jq -r .changeSetId",
    ),
)(list_)
app.command(
    epilog=examples(
        "rebaser tail --follow",
        "rebaser tail shop draft --since 10m --json | jq .requests",
        "rebaser tail --requests --all",
        "rebaser tail --dlq --last",
    )
)(with_access(tail))
app.command(
    epilog=examples(
        "rebaser status",
        "rebaser status --values --limit 20 --after shop/draft",
        "rebaser status --workspace shop --json | jq '.changeSets[] | select(.debt)'",
    )
)(with_access(status))
app.command(
    epilog=examples(
        "rebaser ping",
        'rebaser ping --server "$REBASER_SERVER_ID" --timeout 5',
    )
)(with_access(ping))
app.command(
    epilog=examples(
        "rebaser functions",
        "rebaser functions --json | jq -r .name",
        "rebaser functions --servers",
    )
)(functions)
app.add_typer(dlq)
app.command(
    epilog=examples(
        "rebaser doctor                                      # check the installation",
        "rebaser doctor shop draft                           # check the log of a change set",
        "rebaser doctor shop draft --repair                  # show what a repair would do and lose",
        "rebaser doctor shop draft --repair --yes --save /tmp/damaged",
    )
)(with_access(doctor))
app.command(
    epilog=examples(
        "rebaser demo",
        "rebaser demo --data /tmp/rebaser-demo",
    )
)(demo)
app.command(
    epilog=examples(
        "rebaser bench",
        "rebaser bench --change-sets 1 --in-flight 64 --requests 20000 --json",
    )
)(with_access(bench))


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code. Unexpected exceptions are raised, with their traceback."""
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
            silence_output()  # do not try to write the rest again when the interpreter exits
        return code
    return code if isinstance(code, int) else DONE
