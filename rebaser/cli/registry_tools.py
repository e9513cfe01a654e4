"""Registers the commands that show, examine or measure an installation. `registry` registers the other commands."""

import typer

from rebaser.cli.lazy_group import Function, LazyGroup
from rebaser.cli.options import examples, with_access
from rebaser.cli.registry import FIRST


@LazyGroup.command(
    "list",
    "List workspaces, or the change sets of one workspace.",
    examples(
        "rebaser list",
        "rebaser list shop",
        "rebaser list shop --json | jq -r .changeSetId",
    ),
)
def _list() -> Function:
    from rebaser.cli.commands.list import list_

    return list_


@LazyGroup.command(
    "tail",
    "Show commits, waiting requests or dead letters.",
    examples(
        "rebaser tail --follow",
        "rebaser tail shop draft --since 10m --json | jq .requests",
        "rebaser tail --requests --all",
        "rebaser tail --dlq --last",
    ),
)
def _tail() -> Function:
    from rebaser.cli.commands.observing.tail import tail

    return with_access(tail)


@LazyGroup.command(
    "status",
    "Show servers, change sets, tasks, streams and their durability.",
    examples(
        "rebaser status",
        "rebaser status shop draft                           # its status, and the size of its history",
        "rebaser status --values --limit 20 --after shop/draft",
        "rebaser status --workspace shop --json | jq '.changeSets[] | select(.debt)'",
    ),
)
def _status() -> Function:
    from rebaser.cli.commands.observing.status import status

    return with_access(status)


@LazyGroup.command(
    "top",
    "Show the activity of servers and change sets, and update the view regularly.",
    examples(
        "rebaser top                                         # keys: q, s, w, arrows, Enter",
        "rebaser top shop --interval 5",
        "rebaser top --once",
        "rebaser top --json | jq '.changeSets[] | select(.state == \"waiting\")'",
    ),
)
def _top() -> Function:
    from rebaser.cli.commands.observing.top import top

    return with_access(top)


@LazyGroup.command(
    "console",
    "Serve the web console: servers, change sets and what they wait for, live in a browser.",
    examples(
        "rebaser console                                     # http://127.0.0.1:8420/",
        "rebaser console --nats nats://nats:4222 --http 127.0.0.1:0",
    ),
)
def _console() -> Function:
    from rebaser.cli.commands.observing.console import console

    return with_access(console)


@LazyGroup.command(
    "explain",
    "Explain why a change set waits, or why a value is stale or in error, and what to do.",
    examples(
        "rebaser explain shop draft",
        "rebaser explain shop draft total                    # why it has this value, or none",
        "rebaser explain shop draft --json | jq -r '.reasons[0].code'",
    ),
)
def _explain() -> Function:
    from rebaser.cli.commands.observing.explain import explain

    return with_access(explain)


@LazyGroup.command(
    "ping",
    "Check whether servers are alive and ready.",
    examples(
        "rebaser ping",
        'rebaser ping --server "$REBASER_SERVER_ID" --timeout 5',
    ),
)
def _ping() -> Function:
    from rebaser.cli.commands.observing.ping import ping

    return with_access(ping)


@LazyGroup.command(
    "functions",
    "List the functions that can derive a value.",
    examples(
        "rebaser functions",
        "rebaser functions --json | jq -r .name",
        "rebaser functions --servers",
    ),
)
def _functions() -> Function:
    from rebaser.cli.commands.functions import functions

    return functions


@LazyGroup.command(
    "doctor",
    "Check the installation, or the log of a change set.",
    examples(
        "rebaser doctor                                      # check the installation",
        "rebaser doctor shop draft                           # check the log of a change set",
        "rebaser doctor shop draft --repair                  # show what a repair would do and lose",
        "rebaser doctor shop draft --repair --yes --save /tmp/damaged",
    ),
)
def _doctor() -> Function:
    from rebaser.cli.commands.maintenance.doctor import doctor

    return with_access(doctor)


@LazyGroup.command(
    "gc",
    "Delete the blobs that are no longer needed.",
    examples(
        "rebaser gc --dry-run                                # show what a run would delete",
        "rebaser gc",
        "rebaser gc --grace 1h --json",
        "rebaser gc --spark sc://spark:15002 --nats nats://nats:4222",
    ),
)
def _gc() -> Function:
    from rebaser.cli.commands.maintenance.gc import gc

    return with_access(gc)


@LazyGroup.command(
    "init",
    "Create the streams and their consumers, or update them, and end.",
    examples(
        "rebaser init --nats nats://nats:4222 --nats-user operator --replicas 3",
        "rebaser init --check",
    ),
)
def _init() -> Function:
    from rebaser.cli.commands.running.init import init

    return with_access(init)


@LazyGroup.command(
    "demo",
    "Take a tour with real data, in about a minute.",
    examples(
        "rebaser demo",
        "rebaser demo --data /tmp/rebaser-demo",
    ),
)
def _demo() -> Function:
    from rebaser.cli.commands.running.demo import demo

    return demo


@LazyGroup.command(
    "bench",
    "Measure a running installation under load.",
    examples(
        "rebaser bench",
        "rebaser bench --change-sets 1 --in-flight 64 --requests 20000 --json",
    ),
)
def _bench() -> Function:
    from rebaser.cli.commands.running.bench import bench

    return with_access(bench)


@LazyGroup.group("dlq", "List, show, redrive or drop dead letters.")
def _dlq() -> typer.Typer:
    from rebaser.cli.commands.maintenance.dlq import dlq

    return dlq


COMMANDS = FIRST
"""The group of all commands, in the order in which help lists them."""
