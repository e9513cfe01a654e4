"""The answers of `explain` while something around a change set is at fault: a disk, a clock, a full stream, a function
or the blob store. They name the cause, and not its consequences."""

import time
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from rebaser import pings
from rebaser.change_set.log import commit_log
from rebaser_client import RebaserClient, Set
from rebaser_client.admin import explanations
from rebaser_client.admin import servers as asking
from rebaser_client.blobs.nats import JetStreamBlobs
from rebaser_client.jetstream import JetStream
from rebaser_client.requests.task_publisher import publish_task
from rebaser_core.explain import reasons
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects
from tests.support.explaining import Explain, answering, explained, explains
from tests.support.nats_proxy import Frame, Proxy
from tests.support.owned_log import OpenLog
from tests.support.owners import DOUBLE, Engine

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]

KEY = ChangeSetKey("ws", "cs")


@pytest.fixture
def until(client: RebaserClient) -> Explain:
    return explains(client)


async def test_an_update_that_makes_no_progress_hangs(
    js: JetStream, subjects: Subjects, client: RebaserClient, until: Explain, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine()
    monkeypatch.setattr(reasons, "SILENT", 0.0)
    async with answering(js, subjects, engine):
        await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1), DOUBLE])
        assert (await until("dvu_hangs")).waits
        engine.functions = {"ws.cs": "company.tax (tax.py, line 7)"}
        assert "the function company.tax (tax.py, line 7) runs" in (await until("dvu_hangs")).reasons[0].text
        engine.functions = {}
        engine.load = ((1, 0), (0, 0))
        await until("dvu_running")
        engine.go.set()
        await until("quiet")


async def test_what_a_stuck_load_reads_is_named(
    js: JetStream,
    subjects: Subjects,
    client: RebaserClient,
    until: Explain,
    open_log: OpenLog,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The blob store does not answer."""
    log = await open_log().load()
    await log.append(Set("a", 1))
    await log.write_checkpoint()
    answers, get = anyio.Event(), JetStreamBlobs.get

    async def wait(self: JetStreamBlobs, *given: Any, **named: Any) -> bytes:
        await answers.wait()
        return await get(self, *given, **named)

    monkeypatch.setattr(JetStreamBlobs, "get", wait)
    monkeypatch.setattr(reasons, "LONG_LOAD", 0.0)
    async with answering(js, subjects):
        await client.enqueue_updates("ws", "cs", [Set("a", 2)])
        with anyio.fail_after(60):
            while "it reads the log, blob sha256:" not in (await until("load_stuck")).reasons[0].text:
                pass
        answers.set()
        await until("quiet")


@pytest.mark.parametrize("lost", [False, True], ids=["late", "never"])
async def test_a_disk_that_stores_commits_slowly_is_named_and_not_the_owner(
    js: JetStream,
    lossy: JetStream,
    proxy: Proxy,
    subjects: Subjects,
    client: RebaserClient,
    until: Explain,
    monkeypatch: pytest.MonkeyPatch,
    lost: bool,
) -> None:
    """The answers to appends wait, or never come, while the connection and all other answers are fast."""
    held: list[bytes] = []
    slow = True

    def hold(frame: Frame) -> bool:
        if not slow or f'"{subjects.commits_stream}"'.encode() not in frame.payload or b'"seq"' not in frame.payload:
            return False
        held.append(frame.raw)
        return True

    proxy.lose = hold
    monkeypatch.setattr(reasons, "STUCK", 0.0)
    async with answering(lossy, subjects):
        await client.enqueue_updates("ws", "cs", [Set("a", 1)])
        told = await until("slow_storage")
        assert told.waits
        assert not {"owner_stuck", "deciding"} & {reason.code for reason in told.reasons}
        if lost:
            with anyio.fail_after(60):
                while not (servers := (await client.explain("ws", "cs")).facts.servers) or not servers[0].trouble:
                    pass
            assert "has not answered an append" in servers[0].trouble
            await until("slow_storage")
        slow = False
        if not lost:
            await proxy.say(b"".join(held))
            assert (await until("slow_storage")).facts.servers[0].about  # the append has ended, and was slow
        monkeypatch.setattr(commit_log, "RECENT", 0.0)
        await until("quiet")


@pytest.mark.parametrize(("machines", "wrong"), [(("here",), "this machine"), (("here", "server"), "NATS")])
async def test_the_wrong_clock_is_named(
    js: JetStream,
    subjects: Subjects,
    client: RebaserClient,
    monkeypatch: pytest.MonkeyPatch,
    machines: tuple[str, ...],
    wrong: str,
) -> None:
    """The clock of the machine that asks is wrong, or that of NATS, from which all others differ."""
    async with answering(js, subjects):
        await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1)])
        for module in (asking, explanations):
            monkeypatch.setattr(module, "time", lambda: time.time() - 3600)
        if "server" in machines:
            monkeypatch.setattr(pings, "time", SimpleNamespace(time=lambda: time.time() - 3600))
        told = await explained(client, "clock_wrong")
        [reason] = [one for one in told.reasons if one.code == "clock_wrong"]
        assert not reason.waits
        assert reason.text.startswith(f"the clock of {wrong} is ")
        assert "60 min" in reason.text


async def test_a_full_stream_of_dead_letters_is_named(
    js: JetStream, subjects: Subjects, client: RebaserClient, until: Explain
) -> None:
    async with answering(js, subjects):
        await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1)])
        info = await js.stream_info(subjects.dlq_stream)
        await js.call(f"STREAM.UPDATE.{info.name}", {**info.config, "max_bytes": 100})
        await js.publish(subjects.requests(KEY), b"odd" * 100)
        await publish_task(js, subjects, KEY)
        told = await until("dead_letters_full")
        assert told.waits
        assert not {"quiet", "working"} & {reason.code for reason in told.reasons}
        await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 2)])  # a later commit does not hide it
        assert "was not stored" in (await until("dead_letters_full")).facts.servers[0].trouble
        await js.call(f"STREAM.UPDATE.{info.name}", {**info.config})
        await until("dead_letters")
