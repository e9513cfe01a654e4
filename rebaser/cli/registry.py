"""Registers the commands that run servers, edit change sets and show their history, with summaries and examples.

`registry_tools` registers the other commands.

Invariant: importing this module imports no command. A command's module is imported when the command is chosen or its
help is requested, and imports what it needs when the command runs.
"""

from rebaser.cli.lazy_group import Function, LazyGroup
from rebaser.cli.options import examples, with_access


@LazyGroup.command(
    "dev",
    "Run NATS, a server, Spark and the web console on this machine.",
    examples(
        "rebaser dev",
        "rebaser dev --port 4333 --data /tmp/rebaser",
    ),
)
def _dev() -> Function:
    from rebaser.cli.commands.running.serve import dev

    return dev


@LazyGroup.command(
    "serve",
    "Run a server.",
    examples(
        "rebaser serve --nats nats://nats:4222 --spark sc://spark:15002",
        "REBASER_NATS_URL=nats://a:4222,nats://b:4222 rebaser serve --concurrency 200",
    ),
)
def _serve() -> Function:
    from rebaser.cli.commands.running.serve import serve

    return with_access(serve)


@LazyGroup.command(
    "enqueue",
    "Edit a change set.",
    examples(
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
    ),
)
def _enqueue() -> Function:
    from rebaser.cli.commands.enqueue import enqueue

    return with_access(enqueue)


@LazyGroup.command(
    "recompute",
    "Compute the derived values of a change set again.",
    examples(
        "rebaser recompute shop draft --function company.tax --wait derived",
        "rebaser recompute shop draft",
    ),
)
def _recompute() -> Function:
    from rebaser.cli.commands.recompute import recompute

    return with_access(recompute)


@LazyGroup.command(
    "get",
    "Show the values of a change set, now or at a position in its history.",
    examples(
        "rebaser get shop draft",
        "rebaser get shop draft total 'cart/*/price' --with-definitions",
        "rebaser get shop draft --json | jq 'select(.state == \"error\")'",
        "rebaser get shop draft --updates > updates.jsonl",
        "rebaser get shop draft@2h total                     # as of two hours ago; draft@1234: after commit 1234",
    ),
)
def _get() -> Function:
    from rebaser.cli.commands.get import get

    return with_access(get)


@LazyGroup.command(
    "log",
    "Show the commits of a change set, newest first.",
    examples(
        "rebaser log shop draft",
        "rebaser log shop draft@2h -n 5                      # five commits, as of two hours ago",
        "rebaser log shop draft price                        # who changed price",
        "rebaser log shop main --source                      # and the commits of the branches that were applied",
        "rebaser log shop draft --json | jq -r '.requests[].author'",
    ),
)
def _log() -> Function:
    from rebaser.cli.commands.history.log import log

    return with_access(log)


@LazyGroup.command(
    "show",
    "Show what a commit changed, by request: each value before and after.",
    examples(
        "rebaser show shop draft                             # the newest commit",
        "rebaser show shop draft@1234",
    ),
)
def _show() -> Function:
    from rebaser.cli.commands.history.show import show

    return with_access(show)


@LazyGroup.command(
    "blame",
    "Show who last defined values: the commit, its time (UTC), the author and the request.",
    examples(
        "rebaser blame shop draft price total",
        "rebaser blame shop draft total --deep               # the newest edit on which total depends",
        "rebaser blame shop draft@2h price",
    ),
)
def _blame() -> Function:
    from rebaser.cli.commands.history.blame import blame

    return with_access(blame)


@LazyGroup.command(
    "branch",
    "Create a change set with all values of another one.",
    examples(
        "rebaser branch shop draft                           # from main, as it is now",
        "rebaser branch shop draft --from main@2h            # as it was two hours ago",
        "rebaser branch shop v1 --from main --closed         # a name for this state, which accepts no edits",
        "rebaser branch shop retry --from draft --target main    # with all changes of draft",
        "rebaser branch shop frozen --follow manual          # only rebase and apply bring in main",
    ),
)
def _branch() -> Function:
    from rebaser.cli.commands.branching.branch import branch

    return with_access(branch)


@LazyGroup.command(
    "branches",
    "List change sets, with their bases and the number of values that each changed.",
    examples(
        "rebaser branches shop",
        "rebaser branches shop --all",
        "rebaser branches shop --json | jq -r 'select(.behind) | .changeSetId'",
    ),
)
def _branches() -> Function:
    from rebaser.cli.commands.branching.branches import branches

    return with_access(branches)


@LazyGroup.command(
    "diff",
    "Show what a branch changed, or how two positions of a change set, or two change sets, differ.",
    examples(
        "rebaser diff shop draft                             # what the branch draft changed since its base",
        "rebaser diff shop draft@2h                          # what has changed in two hours",
        "rebaser diff shop draft@1200 draft@1234",
        "rebaser diff shop draft --derived                   # and the derived values that changed with it",
    ),
)
def _diff() -> Function:
    from rebaser.cli.commands.history.diff import diff

    return with_access(diff)


@LazyGroup.command(
    "apply",
    "Apply the changes of a branch to its target: all of them in one commit, or none.",
    examples(
        "rebaser apply shop dearer",
        "rebaser apply shop dearer --strict --yes --author ann -m 'autumn prices'",
        "rebaser apply shop dearer --at 2h                   # the branch as it was two hours ago",
        "rebaser apply shop dearer --at 44 --expect main@41  # only what was reviewed",
    ),
)
def _apply() -> Function:
    from rebaser.cli.commands.branching.apply import apply

    return with_access(apply)


@LazyGroup.command(
    "rebase",
    "Bring newer edits of the target into a branch.",
    examples(
        "rebaser rebase shop dearer",
        "rebaser rebase shop dearer --strategy theirs        # for conflicts, take the target's values",
        "rebaser rebase shop retry --onto main               # if draft, its target, is a branch of main",
    ),
)
def _rebase() -> Function:
    from rebaser.cli.commands.branching.rebase import rebase

    return with_access(rebase)


@LazyGroup.command(
    "conflicts",
    "Show the values that a branch and its target defined differently, and the commands that settle these conflicts.",
    examples(
        "rebaser conflicts shop dearer",
        "rebaser conflicts shop dearer --json | jq -r .id",
    ),
)
def _conflicts() -> Function:
    from rebaser.cli.commands.branching.conflicts import conflicts

    return with_access(conflicts)


@LazyGroup.command(
    "resolve",
    "Settle conflicts of a branch with its target: take the definition of one side, or a new one.",
    examples(
        "rebaser resolve shop dearer price --take main       # as in main",
        "rebaser resolve shop dearer --all --take dearer     # as in the branch",
        "rebaser resolve shop dearer price --set 10.5",
    ),
)
def _resolve() -> Function:
    from rebaser.cli.commands.branching.resolve import resolve

    return with_access(resolve)


@LazyGroup.command(
    "protect",
    "Make a change set refuse edits and reverts.",
    examples(
        "rebaser protect shop main",
        "rebaser protect shop main --off",
    ),
)
def _protect() -> Function:
    from rebaser.cli.commands.branching.protect import protect

    return with_access(protect)


@LazyGroup.command(
    "close",
    "Make a change set refuse all edits, until it is reopened.",
    examples(
        "rebaser close shop dearer",
        "rebaser close shop dearer --applied -m 'applied by hand'",
    ),
)
def _close() -> Function:
    from rebaser.cli.commands.branching.close import close

    return with_access(close)


@LazyGroup.command(
    "reopen",
    "Make a closed change set accept edits again, or restore a deleted one.",
    examples("rebaser reopen shop dearer"),
)
def _reopen() -> Function:
    from rebaser.cli.commands.branching.close import reopen

    return with_access(reopen)


@LazyGroup.command(
    "delete",
    "Delete a change set: it loses its values, and refuses all requests.",
    examples(
        "rebaser delete shop dearer",
        "rebaser delete shop dearer --yes -m 'was a trial'",
    ),
)
def _delete() -> Function:
    from rebaser.cli.commands.branching.delete import delete

    return with_access(delete)


@LazyGroup.command(
    "revert",
    "Revert the edits of commits: each edited value gets the definition that it had before them.",
    examples(
        "rebaser revert shop draft 1234",
        "rebaser revert shop draft 1234..1240 --author ann -m 'wrong currency'",
        "rebaser revert shop draft --to 2h                   # all edits of the last two hours",
    ),
)
def _revert() -> Function:
    from rebaser.cli.commands.history.revert import revert

    return with_access(revert)


@LazyGroup.command(
    "undo",
    "Undo your newest request: each value that it edited gets its earlier definition again.",
    examples(
        "rebaser undo shop draft --author ann",
        "REBASER_AUTHOR=ann rebaser undo shop draft --yes",
    ),
)
def _undo() -> Function:
    from rebaser.cli.commands.history.undo import undo

    return with_access(undo)


@LazyGroup.command(
    "redo",
    "Revert your newest undo: the request that it reverted is applied again.",
    examples("rebaser redo shop draft --author ann"),
)
def _redo() -> Function:
    from rebaser.cli.commands.history.undo import redo

    return with_access(redo)


FIRST = LazyGroup
"""The group that contains the commands registered in this module."""
