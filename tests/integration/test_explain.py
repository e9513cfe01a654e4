"""The answers of `explain` about waiting change sets on a real server, for each reason that is easy to cause."""

from functools import partial
from typing import Any

import anyio
import pytest

from rebaser.change_set.processor import Processor
from rebaser.pings import about_change_set
from rebaser.server import Server
from rebaser.settings import Settings
from rebaser_client import Derive, RebaserClient, Set, Update
from rebaser_client.jetstream import JetStream
from rebaser_client.requests.task_publisher import publish_task
from rebaser_core.commit import CheckpointRef, Kind
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.messages import EnqueueUpdatesRequest, encode, encode_commit
from rebaser_core.streams.subjects import Subjects
from tests.support.commands import rebaser, rebaser_json
from tests.support.contexts import context_of
from tests.support.explaining import KEY, Explain, answering, explains
from tests.support.owned_log import OpenLog
from tests.support.owners import DOUBLE, Engine, serving

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]


@pytest.fixture
def until(client: RebaserClient) -> Explain:
    return explains(client)


async def test_nobody_works_and_nobody_was_told(
    js: JetStream, subjects: Subjects, client: RebaserClient, until: Explain
) -> None:
    assert not (await until("unknown")).waits
    await client.enqueue_updates("ws", "cs", [Set("a", 1)])
    assert (await until("no_server")).waits
    async with answering(js, subjects):
        assert not (await until("quiet")).waits
        headers, payload = encode(EnqueueUpdatesRequest(RequestId("r"), "ws", "other", (Set("a", 1),), None))
        await js.publish(subjects.requests(ChangeSetKey("ws", "other")), payload, headers)
        await until("not_published", "other")
        await publish_task(js, subjects, ChangeSetKey("ws", "other"))
        await until("quiet", "other")


async def test_an_update_runs_fails_and_waits_for_spark(
    js: JetStream, subjects: Subjects, client: RebaserClient, until: Explain
) -> None:
    engine = Engine()
    async with answering(js, subjects, engine):
        await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1), DOUBLE])
        assert "has been updating derived values" in (await until("dvu_running")).reasons[0].text
        engine.state = "down: refused"
        assert "refused" in (await until("spark_down")).reasons[0].text
        engine.state, engine.fails = "ready", True
        engine.go.set()
        assert "the last failure: no" in (await until("dvu_waiting")).reasons[0].text
        engine.fails = False
        await until("quiet")


async def test_all_slots_are_taken(
    js: JetStream, subjects: Subjects, client: RebaserClient, until: Explain, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, process = anyio.Event(), Processor.process

    async def wait(self: Processor, messages: Any) -> Any:
        await go.wait()
        return await process(self, messages)

    monkeypatch.setattr(Processor, "process", wait)
    async with answering(js, subjects, concurrency=1):
        await client.enqueue_updates("ws", "cs", [Set("a", 1)])
        await until("deciding")
        await client.enqueue_updates("ws", "other", [Set("a", 1)])
        assert "1 slots" in (await until("slots_full", "other")).reasons[0].text
        go.set()
        await until("quiet", "other")


async def test_an_owner_that_does_not_answer_may_be_dead(
    js: JetStream, subjects: Subjects, client: RebaserClient, until: Explain
) -> None:
    async with answering(js, subjects, run=False), serving(js, subjects, Engine()):
        await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1), DOUBLE])
        assert "(the newest commit is by test)" in (await until("lease_running_out")).reasons[0].text


async def test_a_request_of_a_newer_version_is_held(
    js: JetStream, subjects: Subjects, client: RebaserClient, until: Explain
) -> None:
    async with answering(js, subjects):
        headers, payload = encode(EnqueueUpdatesRequest(RequestId("r"), "ws", "cs", (Set("a", 1),), None))
        await js.publish(subjects.requests(KEY), payload, headers | {"X-MESSAGE-VERSION": "99"})
        await publish_task(js, subjects, KEY)
        assert "of version 99" in (await until("newer_server_needed")).reasons[0].text


async def test_a_full_log_is_named(js: JetStream, subjects: Subjects, client: RebaserClient, until: Explain) -> None:
    async with answering(js, subjects):
        await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1)])
        info = await js.stream_info(subjects.commits_stream)
        await js.call(f"STREAM.UPDATE.{info.name}", {**info.config, "max_bytes": info.bytes + 100})
        await client.enqueue_updates("ws", "cs", [Set("a", "x" * 1000)])
        await until("log_full")
        await js.call(f"STREAM.UPDATE.{info.name}", {**info.config})
        await until("quiet")


async def test_a_log_that_cannot_be_read_is_named(
    js: JetStream, subjects: Subjects, client: RebaserClient, until: Explain, open_log: OpenLog
) -> None:
    log = await open_log().load()
    await log.append(Set("a", 1))
    missing = f"sha256:{'0' * 64}"
    async with log.commits.append_lock():
        await log.commits.append(log.commits.draft(Kind.CHECKPOINT, checkpoint=CheckpointRef(missing, 1, 7)))
    assert missing in (await until("checkpoint_unreadable")).reasons[0].text
    headers, payload = encode_commit(log.commits.draft(Kind.REBASE, delta=(Set("b", 2),)))
    await js.publish(log.subjects.commits(KEY), payload[:-3], headers)
    assert "commit 3 is damaged" in (await until("log_unreadable")).reasons[0].text
    async with answering(js, subjects):
        await client.enqueue_updates("ws", "cs", [Set("a", 2)])
        with anyio.fail_after(60):
            while not (codes := [one.code for one in (await until("log_unreadable")).reasons])[1:]:
                pass
        assert set(codes[1:]) <= {
            "loading",
            "failing",
            "handing_over",
            "task_on_its_way",
            "lease_running_out",
            "working",
        }


async def test_what_is_worth_knowing_of_a_change_set_at_rest(
    js: JetStream, subjects: Subjects, client: RebaserClient, until: Explain
) -> None:
    engine = Engine()
    async with answering(js, subjects, engine):
        await client.enqueue_updates_with_reply("ws", "main", [Set("a", 1)])
        await client.create_branch("ws", "cs", follow="manual")
        for name, value in (("main", 2), ("cs", 3)):
            await client.enqueue_updates_with_reply("ws", name, [Set("a", value)])
        await until("behind")
        await client.rebase("ws", "cs")
        assert "in conflict with main" in (await until("conflicts")).reasons[0].text
        await client.close_change_set("ws", "cs")
        assert (await until("closed")).facts.branch.conflicts == 1
        await client.delete_change_set("ws", "cs")
        await until("deleted")
        await client.protect("ws", "main")
        await until("protected", "main")
        await client.enqueue_updates("ws", "odd", [Set("a", 1)])
        await js.publish(subjects.requests(ChangeSetKey("ws", "odd")), b"odd")
        await publish_task(js, subjects, ChangeSetKey("ws", "odd"))
        assert "1 request could not be processed" in (await until("dead_letters", "odd")).reasons[0].text
        engine.go.set()
        await client.enqueue_updates_with_reply("ws", "f", [Derive("b", "company.tax")], wait="derived")
        assert "company.tax" in (await until("function_missing", "f")).reasons[0].text


async def test_a_branch_that_nobody_uses_inherits_debt(
    js: JetStream, subjects: Subjects, client: RebaserClient, until: Explain
) -> None:
    engine = Engine()
    async with answering(js, subjects, engine):
        await client.enqueue_updates_with_reply("ws", "main", [Set("a", 1), DOUBLE])
        await client.create_branch("ws", "cs", follow="manual")
        await until("inherited_debt")


async def test_the_command_tells_people_and_programs(
    js: JetStream, subjects: Subjects, client: RebaserClient, nats_url: str
) -> None:
    place: dict[str, Any] = {"nats_url": nats_url, "prefix": subjects.prefix}
    await client.enqueue_updates("ws", "cs", [Set("a", 1)])
    done = await rebaser("explain", "ws", "cs", **place)
    assert done.returncode == 0
    assert [line.split("\t")[:2] for line in done.stdout.splitlines()] == [["no_server", "no server answers"]]
    (told,) = await rebaser_json("explain", "ws", "cs", **place)
    assert (told["waits"], told["reasons"][0]["code"]) == (True, "no_server")
    assert (told["facts"]["queue"]["waiting"], told["facts"]["task"]["delivered"]) == (1, False)


async def test_a_value_is_explained_down_to_where_its_error_began(
    js: JetStream, subjects: Subjects, client: RebaserClient, nats_url: str
) -> None:
    engine = Engine()
    engine.go.set()
    place: dict[str, Any] = {"nats_url": nats_url, "prefix": subjects.prefix}
    async with answering(js, subjects, engine):
        edits: list[Update] = [
            Set("a", 0),
            Derive("b", "cel", {"a": "a"}, {"expr": "1/a"}),
            Derive("c", "sum", {"of": ["b", "none"]}),
        ]
        await client.enqueue_updates_with_reply("ws", "cs", edits, wait="derived", author="ann")
        (told,) = await rebaser_json("explain", "ws", "cs", "b", **place)
        assert (told["state"], told["path"], told["error"]["code"]) == ("error", ["b"], "failed")
        assert told["defined"]["request"]["author"] == "ann"
        assert [(one["id"], one["value"]) for one in told["inputs"]] == [("a", 0)]
        assert told["dependents"] == ["c"]
        await client.enqueue_updates_with_reply("ws", "cs", [Derive("c", "sum", {"of": ["b"]})], wait="derived")
        (told,) = await rebaser_json("explain", "ws", "cs", "c", **place)
        assert (told["path"], told["origin"], told["originDefined"]["id"]) == (["c", "b"], "b", "b")
        done = await rebaser("explain", "ws", "cs", "c", **place)
        assert "path\tc <- b\n" in done.stdout
        assert "of\tb\terror\tfailed: " in done.stdout
        done = await rebaser("explain", "ws", "cs", "none", **place)
        assert (done.returncode, "ws/cs has no value none" in done.stderr) == (1, True)


async def test_a_ping_that_names_nothing_sensible_is_answered_all_the_same(js: JetStream, subjects: Subjects) -> None:
    server = Server(context_of(js, subjects, Settings(server_id="test"), Engine()))
    about = partial(about_change_set, server._context, server)
    for payload in (b"", b"?", b"[]", b'{"workspace":"ws"}', b'{"workspace":"a.b","changeSet":"c"}', b"[" * 2000):
        assert about(payload) == {}
    said: Any = about(b'{"workspace":"ws","changeSet":"cs"}')["changeSet"]
    assert said.keys() == {"rtt", "time", "lag", "reading", "function", "sparkWaits", "seesJobs", "recentUpdates"}


@pytest.mark.parametrize(("spark", "sees"), [("local[*]", True), ("sc://spark:15002", False)])
async def test_only_a_server_with_its_own_spark_sees_progress_in_a_job(
    js: JetStream, subjects: Subjects, spark: str, sees: bool
) -> None:
    server = Server(context_of(js, subjects, Settings(server_id="test", spark=spark), Engine()))
    said: Any = about_change_set(server._context, server, b'{"workspace":"ws","changeSet":"cs"}')["changeSet"]
    assert said["seesJobs"] is sees
