"""The commands with a real installation: nats-server, two Rebaser servers, Spark."""

import json
import signal
from pathlib import Path
from uuid import uuid4

import anyio
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from rebaser.embedded.nats import embedded_nats
from rebaser_client import RebaserClient
from rebaser_client.admin.provisioning import ensure_topology
from rebaser_client.jetstream import Connection, JetStream
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import TopologyOptions
from rebaser_core.updates import Derive, Set, Unset
from tests.support.commands import ROOT, command, environment, rebaser, rebaser_json

pytestmark = [pytest.mark.anyio, pytest.mark.spark]


@pytest.fixture
def cs() -> str:
    """A change set that no other test uses."""
    return f"cli-{uuid4().hex}"


def lines(*updates: Set | Derive | Unset) -> str:
    return "".join(json.dumps(update.to_wire()) + "\n" for update in updates)


async def test_edits_from_options_are_applied_and_derived(fleet_url: str, fleet: object, cs: str) -> None:
    done = await rebaser(
        *("enqueue", "shop", cs, "--set", "price=9.5", "--set", "qty=3", "--derive", "total=price * qty"),
        *("--unset", "note", "--wait", "derived", "--nats", fleet_url),
    )
    assert (done.returncode, done.stderr) == (0, "warning: note did not exist\n")
    assert done.stdout.startswith("applied 4 updates, commit ")
    assert "derived values up to date after" in done.stdout
    shown = await rebaser_json("get", "shop", cs, nats_url=fleet_url)
    assert {one["id"]: (one["value"], one["state"]) for one in shown} == {
        "note": (None, "unset"),
        "price": (9.5, "ok"),
        "qty": (3, "ok"),
        "total": (28.5, "ok"),
    }
    table = await rebaser("get", "shop", cs, "total", nats_url=fleet_url)
    assert table.stdout == "total\tok\t28.5\t\n"


async def test_the_report_for_machines(fleet_url: str, fleet: object, cs: str) -> None:
    [report] = await rebaser_json("enqueue", "shop", cs, "--set", "a=1", nats_url=fleet_url)
    assert report["status"] == "success"
    assert (report["requests"], report["updates"], report["performed"]) == (1, 1, 1)
    assert report["commit"] > 0
    assert len(report["lastRequestId"]) == 26
    [sent] = await rebaser_json("enqueue", "shop", cs, "--set", "a=2", "--wait", "none", nats_url=fleet_url)
    assert (sent["commit"], sent["requests"]) == (None, 1)


async def test_a_formula_over_what_does_not_exist_is_warned_of_at_once(fleet_url: str, fleet: object, cs: str) -> None:
    edits = ("--set", "cart/1/price=2", "--derive", "cart/total=cart/1/price * 2")
    done = await rebaser("enqueue", "shop", cs, *edits, nats_url=fleet_url)
    assert done.returncode == 0
    assert done.stderr.startswith("warning: the formula of cart/total uses ids that do not exist: cart, price; ")
    assert "`cart/1/price`" in done.stderr
    right = ("--derive", "cart/total=`cart/1/price` * 2", "--input", "p=cart/1/*", "--derive", "all=size(p)")
    done = await rebaser("enqueue", "shop", cs, *right, "--wait", "derived", nats_url=fleet_url)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(": 3 ok\n")
    shown = await rebaser_json("get", "shop", cs, "cart/total", "all", nats_url=fleet_url)
    assert [one["value"] for one in shown] == [4, 1]


async def test_what_became_of_the_values_is_told_and_may_be_a_failure(fleet_url: str, fleet: object, cs: str) -> None:
    edits = ("enqueue", "shop", cs, "--set", "a=1", "--derive", "b=a / 0", "--derive", "c=b + 1", "--wait", "derived")
    done = await rebaser(*edits, nats_url=fleet_url)
    assert done.returncode == 0
    assert done.stdout.endswith(": 1 ok, 2 error\n")
    assert done.stderr == "error b: failed: divide by zero\n1 more failed because an input failed\n"
    failed = await rebaser(*edits, "--fail-on-error", "--json", nats_url=fleet_url)
    assert (failed.returncode, failed.stderr) == (1, "rebaser: 2 values are in error\n")
    report = json.loads(failed.stdout)
    assert report["values"] == {"ok": 1, "stale": 0, "error": 2, "unset": 0}
    assert report["errors"] == [{"id": "b", "code": "failed", "message": "divide by zero"}]


async def test_a_request_id_that_is_given_is_applied_once(fleet_url: str, fleet: object, cs: str) -> None:
    edits = ("enqueue", "shop", cs, "--set", "a=1", "--request-id", "nightly-1")
    [first] = await rebaser_json(*edits, nats_url=fleet_url)
    [again] = await rebaser_json(*edits, nats_url=fleet_url)
    assert first["lastRequestId"] == again["lastRequestId"] == "nightly-1"
    assert first["commit"] == again["commit"]


async def test_values_that_do_not_exist_are_named(fleet_url: str, fleet: object, cs: str) -> None:
    await rebaser_json("enqueue", "shop", cs, "--set", "a=1", nats_url=fleet_url)
    done = await rebaser("get", "shop", cs, "a", "b", nats_url=fleet_url)
    assert (done.returncode, done.stdout) == (1, "a\tok\t1\t\n")
    assert done.stderr == f"rebaser: shop/{cs} has no value b; `rebaser get shop {cs}` shows all values\n"


async def test_a_cycle_is_shown_with_its_members(fleet_url: str, fleet: object, cs: str) -> None:
    await rebaser_json(
        "enqueue", "shop", cs, "--derive", "a=b + 1", "--derive", "b=a + 1", "--wait", "derived", nats_url=fleet_url
    )
    [a] = await rebaser_json("get", "shop", cs, "a", nats_url=fleet_url)
    assert (a["state"], a["error"]["code"]) == ("error", "cycle")
    assert "'a', 'b'" in a["error"]["message"]


async def test_what_comes_out_as_updates_goes_in_again(fleet_url: str, fleet: object, cs: str, tmp_path: Path) -> None:
    count = 3000
    first = tmp_path / "first.jsonl"
    first.write_text(
        lines(
            *(Set(f"n/{number}", number) for number in range(count)),
            Derive("sum", "sum", {"values": [f"n/{number}" for number in range(count)]}),
            Unset("é"),
        )
    )
    [report] = await rebaser_json(
        *("enqueue", "shop", cs, "--file", str(first), "--batch", "500", "--wait", "derived"), nats_url=fleet_url
    )
    assert (report["updates"], report["performed"], report["requests"]) == (count + 2, count + 2, 7)
    out = await rebaser("get", "shop", cs, "--updates", nats_url=fleet_url)
    assert (out.returncode, out.stderr) == (0, "")
    assert {json.loads(line)["id"] for line in out.stdout.splitlines()} == {f"n/{n}" for n in range(count)} | {
        "sum",
        "é",
    }
    [again] = await rebaser_json(
        *("enqueue", "shop", f"{cs}-2", "--file", "-", "--wait", "derived"),
        stdin=out.stdout.encode(),
        nats_url=fleet_url,
    )
    assert again["updates"] == count + 2
    values = [await rebaser_json("get", "shop", name, nats_url=fleet_url) for name in (cs, f"{cs}-2")]
    assert values[0] == values[1]
    assert {"id": "sum", "value": sum(range(count)), "state": "ok", "error": None} in values[1]


async def test_a_bad_line_of_a_pipe_ends_there_and_says_what_is_in(fleet_url: str, fleet: object, cs: str) -> None:
    good = [lines(Set(f"n/{number}", number)) for number in range(1, 31)]
    good[24] = '{"op": "set"}\n'
    done = await rebaser(
        *("enqueue", "shop", cs, "--file", "-", "--batch", "10"), stdin="".join(good).encode(), nats_url=fleet_url
    )
    assert done.returncode == 1
    assert "standard input, line 25: id is missing" in done.stderr
    assert "lines 1 to 20 were applied; nothing after that was sent" in done.stderr
    found = await rebaser_json("get", "shop", cs, nats_url=fleet_url)
    assert sorted(one["value"] for one in found) == list(range(1, 21))


async def test_an_empty_file_sends_nothing(fleet_url: str, fleet: object, cs: str) -> None:
    done = await rebaser("enqueue", "shop", cs, "--file", "/dev/null", nats_url=fleet_url)
    assert (done.returncode, done.stdout) == (0, "no updates: nothing sent\n")


async def test_ctrl_c_while_waiting_for_input_ends_and_tells_what_is_in(
    fleet_url: str, client: RebaserClient, cs: str
) -> None:
    async with await anyio.open_process(
        command("enqueue", "shop", cs, "--file", "-", "--batch", "1"), cwd=ROOT, env=environment(nats_url=fleet_url)
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        commits = client.watch("shop", cs, after=0)
        await process.stdin.send(lines(Set("a", 1), Set("b", 2)).encode())
        with anyio.fail_after(120):
            await anext(commits)  # the first line was read, and the command waits for more
        process.send_signal(signal.SIGINT)
        with anyio.fail_after(120):
            assert await process.wait() == 130
        told = b"".join([chunk async for chunk in process.stderr])
        # The log may show the commit before the answer arrives.
        assert told in (
            b"interrupted; lines 1 to 1 were applied\n",
            b"interrupted; lines 1 to 1 may have been applied\n",
        )
        await commits.aclose()


async def test_status_shows_servers_change_sets_and_streams(fleet_url: str, fleet: object, cs: str) -> None:
    [report] = await rebaser_json("enqueue", "shop", cs, "--set", "a=1", "--wait", "derived", nats_url=fleet_url)
    with anyio.fail_after(120):  # each status shows the servers that answer soon
        [overview] = await rebaser_json("status", "--workspace", "shop", nats_url=fleet_url)
        while {server["id"] for server in overview["servers"]} != {"one", "two"}:
            [overview] = await rebaser_json("status", "--workspace", "shop", nats_url=fleet_url)
    [mine] = [one for one in overview["changeSets"] if one["changeSetId"] == cs]
    assert (mine["pending"], mine["debt"]) == (0, False)
    assert mine["lastCommit"] >= report["commit"]
    assert mine["covers"] >= report["commit"]
    assert "REBASER_COMMITS" in {stream["name"] for stream in overview["streams"]}
    [other] = await rebaser_json("status", "--workspace", "nobody", nats_url=fleet_url)
    assert other["changeSets"] == []
    people = await rebaser("status", nats_url=fleet_url)
    assert cs in people.stdout


async def test_tail_shows_commits_and_follows_them(fleet_url: str, client: RebaserClient, cs: str) -> None:
    for number in range(3):
        await client.enqueue_updates_with_reply("shop", cs, [Set("a", number)])
    found = await rebaser_json("tail", "shop", cs, nats_url=fleet_url)
    assert [one["kind"] for one in found] == ["rebase"] * 3
    [last] = await rebaser_json("tail", "shop", cs, "--last", nats_url=fleet_url)
    assert last == found[-1]
    assert last["requests"][0]["outcome"] == "success"
    assert await rebaser_json("tail", "shop", cs, "--since", "1h", nats_url=fleet_url) == found
    assert await rebaser_json("tail", "shop", cs, "--from-seq", str(last["sequence"]), nats_url=fleet_url) == [last]
    assert await rebaser_json("tail", "shop", cs, "--dlq", "--all", nats_url=fleet_url) == []
    people = await rebaser("tail", "shop", cs, nats_url=fleet_url)
    assert people.stdout.count(f"\tshop/{cs}\trebase\t") == 3
    arguments = ("tail", "shop", cs, "--last", "--follow", "--json")
    async with await anyio.open_process(command(*arguments), cwd=ROOT, env=environment(nats_url=fleet_url)) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        lines = BufferedByteReceiveStream(process.stdout)
        with anyio.fail_after(120):
            assert json.loads(await lines.receive_until(b"\n", 100_000)) == last
            await client.enqueue_updates_with_reply("shop", cs, [Set("a", 4)])
            assert json.loads(await lines.receive_until(b"\n", 100_000))["previous"] == last["sequence"]
        process.send_signal(signal.SIGINT)
        with anyio.fail_after(120):
            assert await process.wait() == 0
        assert b"".join([chunk async for chunk in process.stderr]) == b""


async def test_ping_tells_whether_a_server_lives(fleet_url: str, fleet: object) -> None:
    assert (await rebaser("ping", "--timeout", "60", nats_url=fleet_url)).returncode == 0
    [one] = await rebaser_json("ping", "--server", "one", "--timeout", "60", nats_url=fleet_url)
    assert one["id"] == "one"
    gone = await rebaser("ping", "--server", "three", "--timeout", "0.5", nats_url=fleet_url)
    assert (gone.returncode, gone.stderr) == (
        1,
        "rebaser: server three did not answer within 0.5 s; `rebaser doctor` checks the installation\n",
    )
    nobody = await rebaser("ping", "--timeout", "0.5", nats_url=fleet_url, prefix="elsewhere")
    assert (nobody.returncode, nobody.stderr) == (
        1,
        "rebaser: no server answered within 0.5 s; `rebaser doctor` checks the installation\n",
    )


async def test_bench_measures_and_proves_exactness(fleet_url: str, fleet: object) -> None:
    [report] = await rebaser_json(
        *("bench", "--change-sets", "2", "--in-flight", "4", "--requests", "200", "--derived", "6"), nats_url=fleet_url
    )
    assert report["exact"]
    assert (report["applied"]["requests"], report["derived"]["requests"]) == (200, 6)
    assert report["checked"] == 206
    for phase in ("applied", "derived"):
        figures = report[phase]
        assert 0 < figures["p50Ms"] <= figures["p95Ms"] <= figures["p99Ms"]
        assert figures["requestsPerSecond"] > 0


async def test_without_a_server_the_request_is_kept_and_its_id_told(tmp_path: Path, cs: str) -> None:
    async with embedded_nats(tmp_path / "nats") as nats:
        done = await rebaser("get", "shop", cs, nats_url=nats.url)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert "rebaser serve" in done.stderr
        async with Connection.connect(nats.url) as connection:
            await ensure_topology(JetStream(connection), Subjects(), TopologyOptions())
        done = await rebaser("enqueue", "shop", cs, "--set", "a=1", "--timeout", "5", "--json", nats_url=nats.url)
        report = json.loads(done.stdout)
        assert done.returncode == 1
        assert (report["status"], report["error"]["code"], report["commit"]) == ("error", "request_timeout", None)
        assert report["lastRequestId"] in done.stderr
        assert "may still be applied" in done.stderr
        [overview] = await rebaser_json("status", nats_url=nats.url)
        assert overview["servers"] == []
        assert [(one["pending"], one["hasTask"]) for one in overview["changeSets"]] == [(1, True)]


async def test_workspaces_and_their_change_sets_are_listed(fleet_url: str, fleet: object, cs: str) -> None:
    await rebaser_json("enqueue", cs, "b", "--set", "a=1", nats_url=fleet_url)
    await rebaser_json("enqueue", cs, "a", "--set", "a=1", nats_url=fleet_url)
    assert {"workspaceId": cs, "changeSets": 2} in await rebaser_json("list", nats_url=fleet_url)
    assert (await rebaser("list", cs, nats_url=fleet_url)).stdout == "a\nb\n"
    nobody = await rebaser("list", "nobody", nats_url=fleet_url)
    assert (nobody.returncode, nobody.stderr) == (
        1,
        "rebaser: there is no workspace nobody; `rebaser list` shows all workspaces\n",
    )
