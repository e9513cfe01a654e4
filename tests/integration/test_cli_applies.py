"""`apply` and `protect` on the command line, and what other commands show of them."""

import json
from typing import Any

import pytest

from rebaser_client import Derive, RebaserClient, Remove, Set
from rebaser_client.jetstream import JetStream
from rebaser_core.streams.subjects import Subjects
from tests.support.commands import rebaser, rebaser_json
from tests.support.history import commit_of
from tests.support.owners import Engine, serving

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]


@pytest.fixture
def place(nats_url: str, subjects: Subjects) -> dict[str, Any]:
    return {"nats_url": nats_url, "prefix": subjects.prefix}


async def told(place: dict[str, Any], *arguments: str, code: int = 0) -> list[list[str]]:
    """Return the output of a command by lines and columns; if it fails, its errors."""
    done = await rebaser(*arguments, **place)
    assert done.returncode == code, done.stderr
    return [line.split("\t") for line in (done.stderr if code else done.stdout).splitlines()]


async def stands(client: RebaserClient, id_: str) -> object:
    value = await client.value("shop", "main", id_)
    return value and value.value


async def test_a_branch_is_applied_and_every_command_says_so(
    js: JetStream, subjects: Subjects, client: RebaserClient, place: dict[str, Any]
) -> None:
    async with serving(js, subjects, Engine()):
        await client.enqueue_updates_with_reply("shop", "main", [Set("price", 9), Set("qty", 3)])
        branch = await client.create_branch("shop", "draft", follow="manual")
    done = await rebaser("apply", "shop", "draft", "--yes", **place)
    assert (done.returncode, done.stdout) == (0, "")
    assert f"nothing to apply: draft has changed nothing since main@{branch.base}" in done.stderr
    ((line,),) = (await told(place, "apply", "shop", "draft", code=2))[-1:]
    assert "--yes" in line
    async with serving(js, subjects, Engine()):
        await client.enqueue_updates_with_reply("shop", "draft", [Set("price", 10), Remove("qty")])
        (applied,) = await rebaser_json("apply", "shop", "draft", "--yes", "--author", "ann", "-m", "dearer", **place)
        assert (applied["changeSetId"], applied["updates"], applied["from"]["changeSetId"]) == ("main", 2, "draft")
    (shown,) = await rebaser_json("show", "shop", f"main@{applied['commit']}", **place)
    assert shown["from"] == applied["from"]
    assert [one["id"] for one in shown["requests"][0]["changes"]] == ["price", "qty"]
    source = f"applied draft@{applied['from']['position']}"
    assert source in (await told(place, "log", "shop", "main"))[0][-1]
    assert any(source in row[-1] for row in await told(place, "tail", "shop", "main", "--all"))
    (status,) = await rebaser_json("status", "shop", "main", **place)
    assert status["applied"] == [{"changeSetId": "draft", "commit": applied["commit"]}]
    assert ["applied: draft, in commit " + str(applied["commit"])] in await told(place, "status", "shop", "main")
    async with serving(js, subjects, Engine()):
        done = await rebaser("apply", "shop", "draft", "--yes", **place)
        assert (done.returncode, done.stdout) == (0, "")
        assert f"draft was applied; main@{applied['commit']} has all of its edits" in done.stderr
        assert await told(place, "close", "shop", "draft") == [["draft: closed already (applied), nothing was changed"]]
        assert (await rebaser_json("close", "shop", "draft", **place)) == [
            {"requestId": None, "commit": None, "status": "applied"}
        ]
        closed = await client.branch("shop", "draft")
        assert closed is not None
        assert closed.status == "applied"
        done = await rebaser("undo", "shop", "main", "--author", "ann", "--yes", **place)
        assert done.returncode == 0
        way_on = f"rebaser branch shop NAME --from draft@{applied['from']['position']} --target main"
        assert way_on in done.stderr
        assert await stands(client, "price") == 9
        await told(place, *way_on.replace("NAME", "again").split()[1:])
        done = await rebaser("apply", "shop", "again", "--yes", "--keep", **place)
        assert (done.returncode, "closed" in done.stderr) == (0, False)
        assert await stands(client, "price") == 10
        await client.enqueue_updates_with_reply("shop", "again", [Set("price", 11)])
        done = await rebaser("apply", "shop", "again", "--yes", **place)
        assert "again is closed now" in done.stderr
        assert "rebaser reopen shop again" in done.stderr


async def test_a_conflict_shows_all_sides_and_what_to_do(
    js: JetStream, subjects: Subjects, client: RebaserClient, place: dict[str, Any]
) -> None:
    async with serving(js, subjects, Engine()):
        await client.enqueue_updates_with_reply("shop", "main", [Set("price", 9), Set("qty", 3)])
        await client.create_branch("shop", "draft", follow="manual")
        await client.enqueue_updates_with_reply("shop", "draft", [Set("price", 10), Set("qty", 4)])
        await client.enqueue_updates_with_reply("shop", "main", [Set("price", 11)])
        done = await rebaser("apply", "shop", "draft", "--yes", "--at", "0s", **place)  # without a rebase
        assert (done.returncode, done.stdout) == (1, "price\t9\t11\t10\n")
        assert "nothing was applied to main: edited on both sides: price" in done.stderr
        assert "apply draft again without --at" in done.stderr
        done = await rebaser("apply", "shop", "draft", "--yes", "--at", "0s", "--strict", **place)
        assert "apply draft again without --at" in done.stderr
        edited, seen = (
            (await client.state("shop", "main")).edited,
            (await client.changes("shop", "draft")).target_sequence,
        )
        at_once = ("apply", "shop", "draft", "--yes", "--at", "0s", "--expect")
        done = await rebaser(*at_once, f"main@{edited - 1}", **place)
        assert (done.returncode, f"after the expected commit {edited - 1}" in done.stderr) == (1, True), done.stderr
        assert "`rebaser diff shop draft` shows both sides" in done.stderr
        done = await rebaser(*at_once, f"main@{seen}", **place)
        assert (done.returncode, done.stdout) == (1, "price\t9\t11\t10\n"), "what it expects holds: the conflict counts"
        for wrong, told_of in (("main", "name the target"), (f"none@{seen}", "not the target of draft")):
            done = await rebaser(*at_once, wrong, **place)
            assert (done.returncode, told_of in done.stderr) == (2, True), done.stderr
        done = await rebaser("apply", "shop", "draft", "--yes", "--expect", f"main@{seen}", **place)
        assert (done.returncode, "with --at" in done.stderr) == (2, True), done.stderr
        done = await rebaser("apply", "shop", "draft", "--yes", **place)
        assert (done.returncode, done.stdout) == (1, "price\t9\t11\t10\n")
        assert "rebaser resolve shop draft price --take main" in done.stderr
        assert "nothing was applied to main: draft has 1 conflict with it; settle it, and apply again" in done.stderr
    async with serving(js, subjects, Engine()):
        done = await rebaser("apply", "shop", "draft", "--yes", "--json", **place)
        conflict = json.loads(done.stdout)
        assert conflict["base"]["value"] == 9
        assert {name: side["value"] for name, side in conflict["sides"].items()} == {"main": 11, "draft": 10}
        await told(place, *conflict["resolve"][0].split()[1:])
        await told(place, "apply", "shop", "draft", "--yes")
        assert (await stands(client, "price"), await stands(client, "qty")) == (11, 4)


async def test_a_change_set_is_deleted_and_brought_back(
    js: JetStream, subjects: Subjects, client: RebaserClient, place: dict[str, Any]
) -> None:
    async with serving(js, subjects, Engine()):
        await client.enqueue_updates_with_reply("shop", "main", [Set("price", 9)])
        await client.create_branch("shop", "draft", follow="manual")
        ((line,),) = (await told(place, "delete", "shop", "draft", code=2))[-1:]
        assert "--yes" in line
        done = await rebaser("delete", "shop", "draft", "--yes", **place)
        assert done.stdout.startswith("draft: deleted (commit ")
        assert "`rebaser reopen shop draft` brings it back" in done.stderr
        ((line,),) = await told(place, "delete", "shop", "draft", "--yes", code=1)
        assert "rebaser branches shop --all" in line
        ((line,),) = await told(place, "enqueue", "shop", "draft", "--set", "price=1", code=1)
        assert "deleted" in line
    assert [row[0] for row in await told(place, "branches", "shop")] == ["main"]
    assert [row[4] for row in await told(place, "branches", "shop", "--all")] == ["deleted", ""]
    assert await told(place, "list", "shop") == [["main"]]
    assert await told(place, "list") == [["shop", "1"]]
    assert "`rebaser reopen shop draft`" in (await rebaser("get", "shop", "draft", **place)).stderr
    async with serving(js, subjects, Engine()):
        ((line,),) = await told(place, "reopen", "shop", "draft")
        assert line.startswith("draft: open (commit ")
    assert [row[0] for row in await told(place, "get", "shop", "draft")] == ["price"]
    assert await told(place, "list", "shop") == [["draft"], ["main"]]


async def test_a_protected_change_set_takes_branches_only(
    js: JetStream, subjects: Subjects, client: RebaserClient, place: dict[str, Any]
) -> None:
    async with serving(js, subjects, Engine()):
        ((line,),) = await told(place, "protect", "shop", "main", code=1)
        assert "rebaser list shop" in line
        await client.enqueue_updates_with_reply("shop", "main", [Set("price", 9)])
        ((line,),) = await told(place, "protect", "shop", "main", "-m", "reviews only")
        assert line.startswith("main: protected (commit ")
        ((line,),) = await told(place, "enqueue", "shop", "main", "--set", "price=1", code=1)
        assert "protected: apply a branch instead" in line
    assert [row[4] for row in await told(place, "branches", "shop")] == ["protected"]
    assert "protected" in (await told(place, "log", "shop", "main"))[1][-1]
    async with serving(js, subjects, Engine()):
        await client.create_branch("shop", "draft", follow="manual")
        await told(place, "enqueue", "shop", "draft", "--set", "price=10")
        await told(place, "apply", "shop", "draft", "--yes")
    assert await stands(client, "price") == 10
    async with serving(js, subjects, Engine()):
        (off,) = await rebaser_json("protect", "shop", "main", "--off", **place)
        assert off["protected"] is False
        await told(place, "enqueue", "shop", "main", "--set", "price=1")


async def test_a_branch_that_brings_errors_fails_the_check(
    js: JetStream, subjects: Subjects, client: RebaserClient, place: dict[str, Any]
) -> None:
    engine = Engine()
    engine.go.set()
    async with serving(js, subjects, engine):
        sums = [Derive("sum", "sum", {"of": ["a", "b"]}), Derive("broken", "no_such", {"of": "a"})]
        await client.enqueue_updates_with_reply("shop", "main", [Set("a", 1), Set("b", 2), *sums], wait="derived")
        await client.create_branch("shop", "draft", follow="manual")
        await client.enqueue_updates_with_reply(
            "shop", "draft", [Set("b", "x"), Derive("twice", "sum", {"of": ["sum"]})]
        )
        await client.enqueue_updates_with_reply("shop", "main", [Set("c", 3)])
        done = await rebaser("apply", "shop", "draft", "--yes", "--check", **place)
        assert [line.split("\t")[:2] for line in done.stdout.splitlines()] == [
            ["sum", "failed"],
            ["twice", "failed_input"],
        ]
        assert "nothing was applied to main: draft has errors that main does not have: sum, twice" in done.stderr
        assert done.returncode == 1
    async with serving(js, subjects, engine):
        (error, _) = [
            json.loads(line)
            for line in (
                await rebaser("apply", "shop", "draft", "--yes", "--check", "--json", **place)
            ).stdout.splitlines()
        ]
        assert (error["id"], error["error"]["code"]) == ("sum", "failed")
        assert list(await client.new_errors("shop", "draft")) == ["sum", "twice"]
        ((line,),) = (await told(place, "apply", "shop", "draft", "--yes", "--check", "--allow-stale", code=2))[-1:]
        assert "leave out --allow-stale" in line
        before = (await client.branch("shop", "draft")).sequence  # type: ignore[union-attr] # it exists
        await client.enqueue_updates_with_reply("shop", "draft", [Set("b", 5)], wait="derived")
        assert list(await client.new_errors("shop", "draft", at=before)) == ["sum", "twice"]
        await told(place, "apply", "shop", "draft", "--yes", "--check")
        assert await stands(client, "b") == 5


async def test_a_protected_change_set_is_mended_by_a_branch_that_reverts_its_commits(
    js: JetStream, subjects: Subjects, client: RebaserClient, place: dict[str, Any]
) -> None:
    async with serving(js, subjects, Engine()):
        await client.enqueue_updates_with_reply("shop", "main", [Set("price", 9), Set("qty", 3)])
        wrong = commit_of(await client.enqueue_updates_with_reply("shop", "main", [Set("price", 10), Remove("qty")]))
        await client.protect("shop", "main")
        ((line,),) = await told(place, "revert", "shop", "main", str(wrong), code=1)
        assert f"`rebaser revert shop NAME {wrong} --of main`" in line
        ((line,),) = await told(place, "undo", "shop", "main", "--yes", code=1)
        assert f" NAME {wrong} --request " in line
        await told(place, "branch", "shop", "mend", "--follow", "manual")
        ((line,),) = await told(place, "revert", "shop", "mend", str(wrong), code=1)
        assert "specify the target with --of" in line
        (done,) = await rebaser_json("revert", "shop", "mend", str(wrong), "--of", "main", **place)
        assert done["updates"] == 2
        assert f"reverts {wrong} of main" in (await told(place, "log", "shop", "mend"))[0][-1]
        (entry, *_) = await rebaser_json("log", "shop", "mend", **place)
        assert entry["reverts"] == {"first": wrong, "last": wrong, "requestId": None, "of": "main"}
        await told(place, "apply", "shop", "mend", "--yes", "--keep")
        assert (await stands(client, "price"), await stands(client, "qty")) == (9, 3)
        later = commit_of(await client.unprotect("shop", "main"))
        for options, reason in (
            ((str(later), "--of", "main"), "has the edits of main up to commit"),
            ((str(wrong), "--of", "mine"), "mine is not the target of mend"),
        ):
            ((line,),) = await told(place, "revert", "shop", "mend", *options, code=1)
            assert reason in line
    async with serving(js, subjects, Engine()):
        await client.create_branch("shop", "again", follow="manual")
        await client.enqueue_updates_with_reply("shop", "again", [Set("price", 11)])
        ((line,),) = await told(place, "revert", "shop", "again", str(done["commit"]), "--of", "main", code=1)
        assert f"main has no commit from {done['commit']} to {done['commit']}" in line
        conflict = await rebaser("revert", "shop", "again", str(wrong), "--of", "main", **place)
        assert (conflict.returncode, conflict.stdout.splitlines()[0]) == (1, "price\t10\t11\t9")
