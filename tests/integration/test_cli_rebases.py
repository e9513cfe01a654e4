"""`rebase`, `conflicts` and `resolve` on the command line and in the client, and the completion of names in a shell."""

import os
import shlex
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread
from typer._completion_classes import BashComplete
from typer.main import get_command

from rebaser.cli import completion
from rebaser.cli.app import app
from rebaser_client import RebaserClient, Remove, RequestRejected, Set, UnprocessableError, UnresolvedConflicts
from rebaser_client.jetstream import JetStream
from rebaser_client.log import branches
from rebaser_client.log.branch_changes import Changes, read_changes
from rebaser_client.log.commits import CommitReader
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects
from tests.support.commands import ROOT, environment, rebaser, rebaser_json
from tests.support.history import commit_of
from tests.support.owners import Engine, serving

PATIENT = (
    "import sys; from rebaser.cli import completion, main; completion.SECONDS = 60.0; "
    "sys.argv[0] = 'rebaser'; raise SystemExit(main())"
)

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]


@pytest.fixture
def place(nats_url: str, subjects: Subjects) -> dict[str, Any]:
    return {"nats_url": nats_url, "prefix": subjects.prefix}


async def contest(client: RebaserClient) -> None:
    """Let the branch fix and main both edit three of four values."""
    values = [Set("price", 9), Set("qty", 3), Set("x y", 1)]
    await client.enqueue_updates_with_reply("shop", "main", [*values, Set("free", 0)])
    await client.create_branch("shop", "fix", follow="manual")
    await client.enqueue_updates_with_reply("shop", "fix", [Set("price", 12), Remove("qty"), Set("x y", 2)])
    await client.enqueue_updates_with_reply(
        "shop", "main", [Set("price", 10), Set("qty", 4), Set("x y", 3), Set("free", 1)]
    )


async def told(place: dict[str, Any], *arguments: str, code: int = 0) -> tuple[list[str], list[str]]:
    """Return the lines that a command prints to stdout and to stderr."""
    done = await rebaser(*arguments, **place)
    assert done.returncode == code, done.stderr
    return done.stdout.splitlines(), done.stderr.splitlines()


async def stands(client: RebaserClient, name: str) -> dict[str, object]:
    return {id_: value.value for id_, value in (await client.values("shop", name)).items()}


async def test_conflicts_are_recorded_shown_and_settled(
    js: JetStream, subjects: Subjects, client: RebaserClient, place: dict[str, Any]
) -> None:
    async with serving(js, subjects, Engine()):
        await contest(client)
        (out, notes) = await told(place, "conflicts", "shop", "fix")
        assert (out, "`rebaser rebase shop fix`" in notes[0]) == ([], True)
        (out, notes) = await told(place, "rebase", "shop", "fix", "--author", "ann", "-m", "catch up")
        assert out[0].startswith("fix: rebased onto main@")
        assert out[0].endswith("1 update")
        assert notes == ["3 conflicts with main: `rebaser conflicts shop fix` shows them"]
        assert (await stands(client, "fix")) == {"price": 12, "x y": 2, "free": 1}
    (out, _) = await told(place, "branches", "shop")
    assert out[0].split("\t")[4] == "3 conflicts"
    ((branch, _), found) = (await rebaser_json("branches", "shop", **place), await client.conflicts("shop", "fix"))
    assert (branch["conflicts"], branch["behind"]) == (3, False)
    assert [one.id for one in found.conflicts] == ["price", "qty", "x y"]
    assert [one.id for one in (await client.conflicts("shop", "fix", after="price", limit=1)).conflicts] == ["qty"]
    (out, notes) = await told(place, "conflicts", "shop", "fix")
    assert out == ["price\t9\t10\t12", "qty\t3\t4\t-", "x y\t1\t3\t2"]
    assert "rebaser resolve shop fix 'x y' --take main" in notes[2]
    assert "--all --take main" in notes[3]
    async with serving(js, subjects, Engine()):
        (_, notes) = await told(place, "apply", "shop", "fix", "--yes", code=1)
        assert "fix has 3 conflicts with it; settle them" in notes[-1]
        with pytest.raises(UnresolvedConflicts) as caught:
            await client.apply("shop", "fix")
        assert (caught.value.count, caught.value.code) == (3, "unresolved")
        (out, _) = await told(place, "resolve", "shop", "fix", "price", "--take", "fix")
        assert out[0].startswith("fix: 1 conflict settled, 2 left (commit ")
        (_, notes) = await told(place, "resolve", "shop", "fix", "price", "--take", "main", code=1)
        assert "not in conflict in fix: price; `rebaser conflicts shop fix`" in notes[0]
        (out, _) = await told(place, "resolve", "shop", "fix", "qty", "--set", "7")
        (done,) = await rebaser_json("resolve", "shop", "fix", "--all", "--take", "main", **place)
        assert (done["updates"], done["conflicts"]) == (1, 0)
        (_, notes) = await told(place, "resolve", "shop", "fix", "--all", "--take", "main", code=1)
        assert "fix has no conflicts with main" in notes[0]
        (out, notes) = await told(place, "apply", "shop", "fix", "--yes")
        assert out[0].startswith("main: commit ")
        assert await stands(client, "main") == {"price": 12, "qty": 7, "x y": 3, "free": 1}


@pytest.mark.parametrize(
    ("strategy", "price", "changes"),
    [("ours", {"price": 12, "x y": 2}, 3), ("theirs", {"price": 10, "qty": 4, "x y": 3}, 0)],
)
async def test_a_strategy_settles_what_is_in_conflict_and_what_comes(
    js: JetStream,
    subjects: Subjects,
    client: RebaserClient,
    place: dict[str, Any],
    strategy: str,
    price: dict[str, object],
    changes: int,
) -> None:
    async with serving(js, subjects, Engine()):
        await contest(client)
        (first,) = await rebaser_json("rebase", "shop", "fix", **place)
        assert (first["conflicts"], first["updates"], first["target"]) == (3, 1, "main")
        (again,) = await rebaser_json("rebase", "shop", "fix", **place)
        assert again == first | {"commit": None, "updates": 0}
        (done,) = await rebaser_json("rebase", "shop", "fix", "--strategy", strategy, **place)
        assert done["conflicts"] == 0
        assert await stands(client, "fix") == price | {"free": 1}
        assert len((await client.changes("shop", "fix")).changes) == changes


async def test_pages_of_conflicts_are_read_once(
    js: JetStream, subjects: Subjects, client: RebaserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []

    async def counted(commits: CommitReader, key: ChangeSetKey, sequence: int) -> Changes:
        reads.append(sequence)
        return await read_changes(commits, key, sequence)

    async def pages() -> list[str]:
        after, ids = "", list[str]()
        while found := (await client.conflicts("shop", "fix", after=after, limit=1)).conflicts:
            (one,) = found
            ids.append(after := one.id)
        return ids

    monkeypatch.setattr(branches, "read_changes", counted)
    async with serving(js, subjects, Engine()):
        await contest(client)
        await client.rebase("shop", "fix")
        assert await pages() == ["price", "qty", "x y"]
        assert len(reads) == 1
        await client.resolve("shop", "fix", ["qty"], take="main")
        assert await pages() == ["price", "x y"]
        before = await client.conflicts("shop", "fix", at=reads[0], limit=9)
        assert [one.id for one in before.conflicts] == ["price", "qty", "x y"]


async def test_who_did_not_see_a_conflict_does_not_settle_it(
    js: JetStream, subjects: Subjects, client: RebaserClient, place: dict[str, Any]
) -> None:
    async with serving(js, subjects, Engine()):
        await contest(client)
        await client.rebase("shop", "fix")
        seen = (await client.conflicts("shop", "fix")).info.sequence
        await client.enqueue_updates_with_reply("shop", "fix", [Set("price", 13)])  # an edit without `expect`
        assert len((await client.conflicts("shop", "fix")).conflicts) == 3
        with pytest.raises(RequestRejected) as caught:
            await client.resolve("shop", "fix", ["price"], take="main", at=seen)
        assert caught.value.code == "moved"
        await client.resolve("shop", "fix", ["x y"], take="main", at=seen)
        with pytest.raises(UnprocessableError, match="either"):
            await client.resolve("shop", "fix", ["price"])
        with pytest.raises(UnprocessableError, match="fix or main"):
            await client.resolve("shop", "fix", ["price"], take="ours")
        with pytest.raises(UnprocessableError, match="each of `ids`"):
            await client.resolve("shop", "fix", ["price", "qty"], updates=[Set("price", 1)])
        await client.resolve("shop", "fix", updates=[Set("price", 1), Remove("qty")])
        assert (await client.conflicts("shop", "fix")).conflicts == ()
        assert await stands(client, "fix") == {"price": 1, "x y": 3, "free": 1}


async def test_what_cannot_be_done_says_what_to_do_instead(
    js: JetStream, subjects: Subjects, client: RebaserClient, place: dict[str, Any]
) -> None:
    async with serving(js, subjects, Engine()):
        await contest(client)
        await client.rebase("shop", "fix")
        for arguments, code, text in (
            (("rebase", "shop", "main"), 1, "is not a branch of another change set"),
            (("rebase", "shop", "fix", "--strategy", "best"), 2, "must be record, ours or theirs"),
            (("conflicts", "shop", "none"), 1, "there is no change set shop/none"),
            (("resolve", "shop", "fix"), 2, "or use --all"),
            (("resolve", "shop", "fix", "price"), 2, "--take"),
            (("resolve", "shop", "fix", "price", "--take", "ours"), 2, "must be main or fix"),
            (("resolve", "shop", "fix", "price", "--set", "ten"), 2, "if it is text, quote it: --set"),
            (("resolve", "shop", "fix", "price", "--set", "1", "--remove"), 2, "use exactly one"),
        ):
            (_, notes) = await told(place, *arguments, code=code)
            assert text in notes[-1]
    async with serving(js, subjects, Engine()):
        await told(place, "close", "shop", "fix")
        for arguments in (
            ("rebase", "shop", "fix", "--strategy", "ours"),
            ("resolve", "shop", "fix", "--all", "--remove"),
            ("undo", "shop", "fix", "--yes"),
        ):
            (_, notes) = await told(place, *arguments, code=1)
            assert "`rebaser reopen shop fix` opens it again" in notes[-1]


async def test_an_apply_rebases_again_if_the_target_is_edited_meanwhile(
    js: JetStream, subjects: Subjects, client: RebaserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, edits = client.enqueue_updates_with_reply, iter([Set("free", 5), Set("qty", 8), Set("free", 6)])

    async def overtaken(workspace: str, name: str, updates: Any, **options: Any) -> Any:
        edit = next(edits, None) if name == "main" else None
        if edit is not None:
            await send("shop", "main", [edit])
        return await send(workspace, name, updates, **options)

    async with serving(js, subjects, Engine()):
        await send("shop", "main", [Set("price", 9), Set("qty", 3)])
        await client.create_branch("shop", "fix", follow="manual")
        await send("shop", "fix", [Set("price", 10)])
        monkeypatch.setattr(client, "enqueue_updates_with_reply", overtaken)
        applied = commit_of(await client.apply("shop", "fix", strict=True))
        assert await stands(client, "main") == {"price": 10, "qty": 8, "free": 6}
        state = await client.state("shop", "main", at=applied)
        assert state.taken.keys() == {"fix"}


OPTIONAL = (["status"], ["tail"], ["doctor"], *(["dlq", one] for one in ("list", "show", "redrive", "drop")))


async def test_a_shell_completes_names(
    js: JetStream,
    subjects: Subjects,
    client: RebaserClient,
    nats_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(completion, "SECONDS", 60.0)
    monkeypatch.setenv("REBASER_PREFIX", subjects.prefix)
    shell = BashComplete(get_command(app), {}, "rebaser", "_REBASER_COMPLETE")

    async def completed(*words: str, url: str = nats_url) -> list[str]:
        monkeypatch.setenv("REBASER_NATS_URL", url)
        found = await to_thread.run_sync(shell.get_completions, list(words[:-1]), words[-1])
        return [one.value for one in found]

    async with serving(js, subjects, Engine()):
        await contest(client)
        await client.rebase("shop", "fix")
        await client.create_branch("shop", "fast", follow="manual")
        await client.create_branch("shop", "twig", "fix", follow="manual")
    assert await completed("get", "s") == ["shop"]
    assert await completed("get", "shop", "") == ["fast", "fix", "main", "twig"]
    assert await completed("rebase", "shop", "f") == ["fast", "fix"]
    assert await completed("resolve", "shop", "fix", "p") == ["price"]
    assert await completed("resolve", "shop", "fix", "price", "--take", "") == ["fix", "main"]
    for words in OPTIONAL:
        assert await completed(*words, "") == ["shop"], words
        assert await completed(*words, "shop", "f") == ["fast", "fix"], words
    assert await completed("status", "--workspace", "") == ["shop"]
    assert await completed("diff", "shop", "fix", "m") == ["main"]
    assert await completed("branch", "shop", "new", "--from", "f") == ["fast", "fix"]
    assert await completed("branch", "shop", "new", "--target", "") == ["main"]
    assert await completed("branch", "shop", "new", "--from", "fix@2h", "--target", "") == ["fix", "main"]
    assert await completed("apply", "shop", "twig", "--to", "") == ["fix"]
    assert await completed("apply", "shop", "fix", "--at", "9", "--expect", "") == ["main"]
    assert await completed("rebase", "shop", "twig", "--onto", "") == ["main"]
    assert await completed("rebase", "shop", "fix", "--onto", "") == []
    assert await completed("revert", "shop", "fix", "--of", "") == ["main"]
    for command in ("get", "log", "blame", "explain"):
        assert await completed(command, "shop", "main", "") == ["free", "price", "qty", "x y"], command
    assert await completed("get", "shop", "fix", "price", "") == ["free", "x y"]
    assert await completed("log", "shop", "main@1", "p") == ["price"]
    monkeypatch.setattr(completion, "MAX_LOADED", -1)
    assert await completed("get", "shop", "main", "") == [], "the state is too large to be loaded for that"
    monkeypatch.setattr(completion, "SECONDS", 0.1)
    assert await completed("get", "s", url="nats://127.0.0.1:1") == []


async def test_bash_completes_names(
    js: JetStream, subjects: Subjects, client: RebaserClient, place: dict[str, Any], tmp_path: Path
) -> None:
    """With the script that `--install-completion` installs, in a bash in which the tab key is pressed."""
    program = tmp_path / "rebaser"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{PATIENT}" "$@"\n')
    program.chmod(0o755)
    kept = environment(**place) | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    source = await anyio.run_process([str(program)], env=kept | {"_REBASER_COMPLETE": "source_bash"})

    async def completed(*words: str) -> tuple[list[str], str]:
        quoted = " ".join(shlex.quote(word) for word in ("rebaser", *words))
        press = f"COMP_WORDS=({quoted}); COMP_CWORD={len(words)}; _rebaser_completion rebaser"
        script = f'{source.stdout.decode()}\n{press}; echo "${{COMPREPLY[*]}}"'
        with anyio.fail_after(240):
            done = await anyio.run_process(["bash", "--norc", "-c", script], env=kept, check=False)
        return done.stdout.decode().split(), done.stderr.decode()

    async with serving(js, subjects, Engine()):
        await contest(client)
        await client.create_branch("shop", "fast", follow="manual")
    assert await completed("get", "s") == (["shop"], "")
    assert await completed("apply", "shop", "") == (["fast", "fix"], "")
    assert await completed("diff", "shop", "fi") == (["fix"], "")
    kept["REBASER_NATS_URL"] = "nats://127.0.0.1:1"
    assert await completed("get", "s") == ([], ""), "no error, and no names"


async def test_a_diff_marks_what_has_landed(
    js: JetStream, subjects: Subjects, client: RebaserClient, place: dict[str, Any]
) -> None:
    """This is the case between an apply and the replay of the target by the branch."""
    async with serving(js, subjects, Engine()):
        await client.enqueue_updates_with_reply("shop", "main", [Set("price", 9), Set("qty", 3)])
        await client.create_branch("shop", "fix", follow="manual")
        await client.enqueue_updates_with_reply("shop", "fix", [Set("price", 10), Set("qty", 4)])
        await client.enqueue_updates_with_reply("shop", "main", [Set("price", 10), Set("qty", 5)])
    (out, _) = await told(place, "diff", "shop", "fix")
    assert out == ["price\t9\t10\t10 (landed)", "qty\t3\t4\t5"]
    price, qty = await rebaser_json("diff", "shop", "fix", **place)
    assert (price["landed"], qty["landed"]) == (True, False)
