"""Logs damaged by hand in many ways: what the doctor tells, what a repair keeps, and that all goes on after it."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import cbor2
import pytest

from rebaser.change_set.log import checkpointer
from rebaser.change_set.log.commit_log import open_log
from rebaser.cli.commands.operation.doctor import DoctorRun
from rebaser.cli.errors import CommandFailed
from rebaser.doctor import examination
from rebaser.doctor.examination import Stores, examine
from rebaser.doctor.repair import repair
from rebaser.settings import Settings
from rebaser_client import Derive, RebaserClient, Remove, Set, Update
from rebaser_client.blobs import open_blobs
from rebaser_client.jetstream import JetStream
from rebaser_core.commit import BlobRef, CheckpointRef
from rebaser_core.encoding.envelope import APPLIED, DEBT, MESSAGE_TYPE, MESSAGE_VERSION
from rebaser_core.errors import FencedError, TransientError
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.messages import encode_delta
from rebaser_core.streams.subjects import Subjects
from rebaser_core.values import Value
from tests.support.commands import rebaser
from tests.support.contexts import context_of
from tests.support.damage import DamagedLog, Raw
from tests.support.history import commit_of
from tests.support.owners import Engine, serving

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]

KEY = ChangeSetKey("ws", "cs")

# Commits 1, 3, 5, 7 decide these, each followed by that of its update.
EDITS: list[list[Update]] = [
    [Set("a", 1), Set("b", 2), Derive("s", "sum", {"of": ["a", "b"]}), Derive("t", "sum", {"of": ["s", "b"]})],
    [Set("a", 10)],
    [Set("c", 5), Derive("u", "sum", {"of": ["c", "a"]}), Set("e", 1)],
    [Set("b", 20), Remove("e")],
]
EMPTY = "the log is empty: no request was ever decided, or all messages were purged"
ALL = {"a": 10, "b": 20, "c": 5, "s": 30, "t": 50, "u": 15}


class Patient:
    """A change set with a log of its own, and the doctor."""

    def __init__(self, js: JetStream, subjects: Subjects, url: str, client: RebaserClient) -> None:
        self.js, self.subjects, self.url, self.client = js, subjects, url, client
        self.log = DamagedLog(js, subjects, KEY)
        self.stores = Stores(js, subjects, open_blobs(None, js, subjects.blobs_bucket))
        self.engine = Engine()
        self.engine.go.set()

    async def live(self, checkpoint_after: int = 0) -> None:
        """Make the edits, with a checkpoint after so many of them; the log is read then."""
        if checkpoint_after:
            await self._edit(1, checkpoint_after)
            await self.write_checkpoint()
        await self._edit(checkpoint_after + 1, len(EDITS))
        await self.log.read()

    async def _edit(self, first: int, last: int) -> None:
        async with serving(self.js, self.subjects, self.engine):
            for number in range(first, last + 1):
                updates = EDITS[number - 1]
                await self.client.enqueue_updates_with_reply(
                    "ws", "cs", updates, wait="derived", request_id=f"r{number}"
                )

    async def write_checkpoint(self, *, history: bool = True) -> CheckpointRef:
        settings = Settings(server_id="test") if history else Settings(server_id="test", history_for=0)
        context = context_of(self.js, self.subjects, settings)
        commits = await open_log(context, KEY)
        await checkpointer.write(context, commits)
        assert commits.state.checkpoint is not None
        return commits.state.checkpoint

    async def visit(self, *, repair: bool = False, yes: bool = False, save: Path | None = None) -> dict[str, Any]:
        """What the command does, and what it says."""
        visit = DoctorRun(KEY, repair, yes, save)
        await visit.run(self.url, self.subjects.prefix)
        visit.show()
        told = visit.to_object()
        json.dumps(told)
        if told["damaged"] and not repair:
            with pytest.raises(CommandFailed, match="damaged"):
                visit.end()
        else:
            assert visit.end() == 0
        return told

    async def repaired(self) -> dict[str, Any]:
        """Diagnose, try dry, repair; returns what was told before. Nothing changes until it is done, all is well after
        it, and what is derived is true."""
        before = await self.log.stands()
        told = await self.visit()
        assert told["damaged"]
        assert (await self.visit(repair=True)) == told
        assert await self.log.stands() == before
        await self.js.purge(self.subjects.tasks_stream, self.subjects.task(KEY))
        done = await self.visit(repair=True, yes=True)
        assert await self.js.last(self.subjects.tasks_stream, self.subjects.task(KEY)) is not None  # an owner is woken
        assert done == told | {"repairedBy": done["repairedBy"]}
        after = await self.visit()
        assert (after["damaged"], after["checkpoint"]) == (False, done["last"])
        assert not (await self.visit(repair=True, yes=True))["repairedBy"]
        return told

    async def goes_on(self) -> dict[str, Any]:
        """Edits go on; what is derived is what a change set made anew from the definitions has. Returns the values."""
        async with serving(self.js, self.subjects, self.engine):
            await self.client.enqueue_updates_with_reply("ws", "cs", [Set("z", 1)], wait="derived")
            values = await self.client.values("ws", "cs")
            updates = list((await self.client.state("ws", "cs")).updates())
            await self.client.enqueue_updates_with_reply("ws", "copy", updates, wait="derived")
            assert await self.client.values("ws", "copy") == values
        del values["z"]
        return {id_: value.value for id_, value in values.items() if value.error is None}


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "BLOB_PAUSE", 0.0)


@pytest.fixture
async def patient(js: JetStream, subjects: Subjects, nats_url: str) -> AsyncIterator[Patient]:
    async with RebaserClient.connect(nats_url, prefix=subjects.prefix) as client:
        yield Patient(js, subjects, nats_url, client)


def without_id(raw: Raw) -> None:
    """What a defect wrote once: a result for nobody."""
    content = cbor2.loads(raw.data)
    content["v1"]["delta"]["computed"][0]["id"] = ""
    raw.data = cbor2.dumps(content)


async def garbage(log: DamagedLog) -> None:
    log.messages[4].data = b"\x00garbage"


async def no_id(log: DamagedLog) -> None:
    without_id(log.messages[4])


async def no_id_in_a_blob(log: DamagedLog) -> None:
    data = cbor2.dumps({"v1": {"computed": [{"id": "", "value": 1}]}})
    log.messages[4].change(delta=(), delta_blob=BlobRef(await log.blobs.put(data), len(data)))


async def no_blob(log: DamagedLog) -> None:
    log.messages[4].change(delta=(), delta_blob=BlobRef(f"sha256:{'0' * 64}", 7))


async def no_table(log: DamagedLog) -> None:
    data = cbor2.dumps({"v2": {"computed": {}}})
    log.messages[4].change(delta=(), delta_blob=BlobRef(await log.blobs.put(data), len(data)))


async def no_type(log: DamagedLog) -> None:
    """An edit."""
    del log.messages[5].headers[MESSAGE_TYPE]


async def no_headers(log: DamagedLog) -> None:
    """An edit."""
    log.messages[5].headers = {}


async def other_headers(log: DamagedLog) -> None:
    log.messages[5].headers |= {MESSAGE_VERSION: "first", APPLIED: "x", DEBT: "-1"}


async def copied(log: DamagedLog) -> None:
    log.messages[9] = log.messages[3]


async def nothing_for_the_sweeper(log: DamagedLog) -> None:
    for name in (APPLIED, DEBT):
        del log.messages[8].headers[name]


DAMAGES: dict[Callable[[DamagedLog], Awaitable[None]], tuple[int, str]] = {
    garbage: (4, "is damaged"),
    no_id: (4, "id is missing"),
    no_id_in_a_blob: (4, "id is missing"),
    no_blob: (4, "there is no blob"),
    no_table: (4, "a delta that cannot be read"),
    no_type: (5, "damaged headers"),
    no_headers: (5, "damaged headers"),
    other_headers: (5, "damaged headers"),
    copied: (9, "is a copy of commit 3"),
    nothing_for_the_sweeper: (8, "sweeper"),
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
async def test_what_loses_nothing(patient: Patient, damage: Callable[[DamagedLog], Awaitable[None]]) -> None:
    await patient.live()
    await damage(patient.log)
    await patient.log.store()
    told = await patient.repaired()
    sequence, problem = DAMAGES[damage]
    assert [(one["sequence"], one["lost"]) for one in told["findings"]] == [(sequence, "nothing")]
    assert problem in told["findings"][0]["problem"]
    assert not told["loses"]
    state = await patient.client.state("ws", "cs")
    assert set(state.outcomes) == {"r1", "r2", "r3", "r4"}
    assert state.stale() == (set() if damage is nothing_for_the_sweeper else {"s", "t", "u"})
    assert await patient.goes_on() == ALL


async def truncated(log: DamagedLog) -> None:
    data = log.messages[5].data
    log.messages[5].data = data[: data.rindex(b"bidae")]  # before the id of the last edit


async def delta_in_blob(log: DamagedLog) -> str:
    data = encode_delta(log.messages[5].commit().delta)
    address = await log.blobs.put(data)
    log.messages[5].change(delta=(), delta_blob=BlobRef(address, len(data)))
    return address


async def delta_missing(log: DamagedLog) -> None:
    await log.lose_blob(await delta_in_blob(log))


async def delta_garbled(log: DamagedLog) -> None:
    await log.garble_blob(await delta_in_blob(log))


async def edit_without_id(log: DamagedLog) -> None:
    content = cbor2.loads(log.messages[5].data)
    [body] = content.values()
    body["delta"]["updates"][2]["id"] = ""
    log.messages[5].data = cbor2.dumps(content)


async def all_garbage(log: DamagedLog) -> None:
    """But what its kind has in the headers."""
    log.messages[5] = Raw({MESSAGE_TYPE: "Commit"}, b"\xff" * 50)


async def removed(log: DamagedLog) -> None:
    del log.messages[5]


LOSSES: dict[Callable[[DamagedLog], Awaitable[None]], tuple[list[str], list[str]]] = {
    truncated: (["r3"], ["c", "u"]),
    edit_without_id: (["r3"], ["c", "u"]),
    delta_missing: (["r3"], []),
    delta_garbled: (["r3"], []),
    all_garbage: ([], []),
    removed: ([], []),
}


@pytest.mark.parametrize("damage", LOSSES, ids=lambda damage: damage.__name__)
async def test_the_edits_of_a_lost_commit_are_lost_and_listed_and_no_others(
    patient: Patient, damage: Callable[[DamagedLog], Awaitable[None]]
) -> None:
    await patient.live()
    await damage(patient.log)
    await patient.log.store()
    told = await patient.repaired()
    requests, ids = LOSSES[damage]
    [finding] = told["findings"]
    assert (finding["sequence"], finding["lost"], told["wholeUntil"], told["carried"]) == (5, "edits", 4, 3)
    assert [one["requestId"] for one in finding["requests"]] == requests
    assert finding["ids"] == ids
    assert (finding["kind"] is None) == (damage in (all_garbage, removed))
    assert set((await patient.client.state("ws", "cs")).outcomes) == {"r1", "r2", "r4"}
    assert await patient.goes_on() == {"a": 10, "b": 20, "s": 30, "t": 50}


async def test_a_request_of_a_lost_commit_that_still_stands_in_the_queue_is_dead_and_can_be_redriven_once(
    patient: Patient, js: JetStream, subjects: Subjects
) -> None:
    await patient.live()
    applied = await js.stream_info(subjects.requests_stream)
    client = patient.client
    await client.enqueue_updates("ws", "cs", [Set("late", 1)], request_id="late")
    await client.enqueue_updates("ws", "cs", [Set("new", 1)], request_id="new")
    commit = patient.log.messages[7].commit()
    assert commit.applied is not None
    late = await js.next(subjects.requests_stream, subjects.requests(KEY), 1)
    assert late is not None
    assert late.sequence == applied.last_sequence + 1
    lost = Raw(dict(patient.log.messages[7].headers), b"\xff")
    lost.headers[APPLIED] = f"{commit.applied.stream}:{late.sequence}"
    patient.log.messages[9] = lost
    await patient.log.store()
    told = await patient.repaired()
    assert told["queued"] == [{"sequence": late.sequence, "requestId": "late"}]
    assert [(one["sequence"], one["lost"]) for one in told["findings"]] == [(9, "edits")]
    assert await patient.goes_on() == ALL | {"new": 1}
    [letter] = [letter async for letter in client.dead_letters.find("ws", "cs")]
    assert (letter.request_id, letter.code) == ("late", "skipped")
    assert await client.dead_letters.redrive(letter)
    assert await patient.goes_on() == ALL | {"new": 1, "late": 1}
    state = await client.state("ws", "cs")
    assert state.recorded(RequestId("late")) is not None


async def test_a_lost_header_has_no_good_request_passed_over(patient: Patient) -> None:
    """What a damaged commit says of the queue is believed only as far as it may be true."""
    await patient.live()
    raw = Raw(dict(patient.log.messages[7].headers), b"\xff")
    stream, _, _ = raw.headers[APPLIED].rpartition(":")
    raw.headers[APPLIED] = f"{stream}:{2**60}"
    patient.log.messages[9] = raw
    await patient.log.store()
    assert [one["lost"] for one in (await patient.repaired())["findings"]] == ["unknown"]
    assert await patient.goes_on() == ALL


@pytest.mark.parametrize("in_checkpoint", [True, False])
async def test_a_blob_store_that_is_away_is_no_damage(patient: Patient, in_checkpoint: bool) -> None:
    """A repair would lose what it holds."""

    class Away:
        async def put(self, data: bytes) -> str:
            raise TransientError("away", code="blob_store")

        async def get(self, address: str, *, max_bytes: int = 0) -> bytes:
            raise TransientError("away", code="blob_store")

    await patient.live(checkpoint_after=2 if in_checkpoint else 0)
    if not in_checkpoint:
        await delta_in_blob(patient.log)
        await patient.log.store()
    assert not (await examine(patient.stores, KEY)).damaged
    with pytest.raises(TransientError, match="away"):
        await examine(replace(patient.stores, blobs=Away()), KEY)


async def test_the_checkpoint_before_is_enough_while_its_tail_is_there(patient: Patient) -> None:
    await patient.live(checkpoint_after=1)
    await patient.write_checkpoint()
    await patient.log.read()
    newest = patient.log.messages[max(patient.log.messages)].commit().checkpoint
    assert newest is not None
    await patient.log.lose_blob(newest.address)
    told = await patient.repaired()
    assert [one["lost"] for one in told["findings"]] == ["nothing"]
    assert "names a checkpoint that cannot be read" in told["findings"][0]["problem"]
    assert told["checkpoint"] == 2
    state = await patient.client.state("ws", "cs")
    assert (state.owes, len(state.outcomes)) == (False, 4), "all of it was read: nothing has to be computed again"
    assert await patient.goes_on() == ALL


async def test_what_only_a_lost_checkpoint_held_is_lost_and_what_followed_is_not(patient: Patient) -> None:
    await patient.live(checkpoint_after=2)
    messages = patient.log.messages
    reference = messages[max(messages)].commit().checkpoint
    assert reference is not None
    for sequence in [one for one in messages if one <= reference.sequence]:
        del messages[sequence]
    await patient.log.store()
    await patient.log.garble_blob(reference.address)
    told = await patient.repaired()
    assert [one["lost"] for one in told["findings"]] == ["nothing", "edits"]
    assert "is missing, with all commits before it" in told["findings"][1]["problem"]
    assert await patient.goes_on() == {"b": 20, "c": 5}


@pytest.mark.parametrize(("lost", "history"), [("base", False), ("base", True), ("delta", False), ("delta", True)])
async def test_a_part_of_a_checkpoint_that_is_lost(patient: Patient, lost: str, history: bool) -> None:
    """With the newest one the checkpoint before is as good; with the base both are gone, but history has all."""
    many: list[Update] = [Set(f"v{number}", number) for number in range(50)]
    await patient.live()
    async with serving(patient.js, patient.subjects, patient.engine):
        await patient.client.enqueue_updates_with_reply("ws", "cs", many, wait="derived")
    base = await patient.write_checkpoint(history=history)
    async with serving(patient.js, patient.subjects, patient.engine):
        await patient.client.enqueue_updates_with_reply("ws", "cs", [Set("a", 11)], wait="derived")
    delta = await patient.write_checkpoint(history=history)
    assert delta.size - base.size < base.size, "it has two parts"
    async with serving(patient.js, patient.subjects, patient.engine):
        await patient.client.enqueue_updates_with_reply("ws", "cs", [Set("b", 21)], wait="derived")
    await patient.log.lose_blob((base if lost == "base" else delta).address)
    told = await patient.repaired()
    values = await patient.goes_on()
    if lost == "delta" or history:
        assert {one["lost"] for one in told["findings"]} == {"nothing"}
        assert values.items() >= {"a": 11, "b": 21, "s": 32, "t": 53, "v49": 49}.items()
    else:
        assert [one["lost"] for one in told["findings"]] == ["nothing", "nothing", "edits"]
        assert values == {"a": 11, "b": 21}


async def test_a_repair_with_the_blob_store_of_somebody_else_can_be_undone(
    patient: Patient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It finds no blob, and says where it looked; as it deletes nothing, another repair has all of it again."""
    await patient.live(checkpoint_after=2)
    for sequence in range(1, 5):  # what a second checkpoint would purge
        del patient.log.messages[sequence]
    await patient.log.store()
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("REBASER_BLOBS", f"file://{tmp_path}/blobs")
        assert (await patient.visit(repair=True, yes=True))["loses"]
        assert f"blobs were read from file://{tmp_path}/blobs; if servers use another store" in capsys.readouterr().out
    assert not (await patient.repaired())["loses"]
    assert await patient.goes_on() == ALL


async def test_a_checkpoint_that_is_said_to_be_of_another_commit_is_read_and_written_anew(patient: Patient) -> None:
    await patient.live(checkpoint_after=2)
    for raw in patient.log.messages.values():
        reference = raw.commit().checkpoint
        if reference is not None:
            raw.change(checkpoint=CheckpointRef(reference.address, 100, reference.size))
    await patient.log.store()
    told = await patient.repaired()
    assert "says its checkpoint is of commit 100, but the checkpoint is of commit 4" in told["findings"][0]["problem"]
    assert not told["loses"]
    assert await patient.goes_on() == ALL


async def test_a_checkpoint_from_behind_the_commit_that_names_it_is_not_used(
    patient: Patient, subjects: Subjects
) -> None:
    await patient.live()
    reference = await patient.write_checkpoint()
    await patient.log.read()
    for sequence in (8, 9):
        del patient.log.messages[sequence]
    patient.log.messages[7].change(checkpoint=reference)
    await patient.log.store()
    told = await patient.repaired()
    assert told["findings"][0]["problem"] == "names a checkpoint of commit 8, which is not before it"
    assert await patient.goes_on() == ALL


# -- what is no damage -------------------------------------------------------------------------------------------------


async def test_what_is_no_damage_is_left_alone(patient: Patient, js: JetStream) -> None:
    assert (await patient.visit())["notes"] == [EMPTY]
    await patient.live(checkpoint_after=2)
    assert (await patient.visit())["notes"] == []
    patient.log.messages[2].data = b"\xff"
    await patient.log.store()
    await js.publish(patient.log.subject, b"hello")
    told = await patient.visit(repair=True, yes=True)
    assert (told["damaged"], told["repairedBy"]) == (False, None)
    below, foreign = told["notes"]
    assert below.startswith("message 2 cannot be read")
    assert "is not a commit" in foreign
    assert await patient.goes_on() == ALL


async def test_the_last_commits_leave_no_trace_and_all_goes_on_without_them(patient: Patient) -> None:
    await patient.live()
    for sequence in (7, 8):
        del patient.log.messages[sequence]
    await patient.log.store()
    assert not (await patient.visit())["damaged"]
    assert await patient.goes_on() == {"a": 10, "b": 2, "c": 5, "e": 1, "s": 12, "t": 14, "u": 15}


@pytest.mark.parametrize("newer", ["kind", "version", "blob", "checkpoint"])
async def test_what_a_newer_server_may_read_is_not_repaired(patient: Patient, newer: str) -> None:
    await patient.live()
    raw = patient.log.messages[6]
    if newer == "kind":
        raw.data = raw.data.replace(b"dkindcdvu", b"dkindcdvx")
    elif newer == "version":
        raw.headers[MESSAGE_VERSION] = "99"
    elif newer == "blob":
        data = cbor2.dumps({"v99": {}})
        raw.change(delta=(), delta_blob=BlobRef(await patient.log.blobs.put(data), len(data)))
    else:
        reference = await patient.write_checkpoint()
        await patient.log.read()
        data = (await patient.log.blobs.get(reference.address)).replace(b'"version":3', b'"version":9')
        newest = CheckpointRef(await patient.log.blobs.put(data), reference.sequence, len(data))
        patient.log.messages[9].change(checkpoint=newest)
    patient.log.messages[4].data = b"\xff"
    await patient.log.store()
    before = await patient.log.stands()
    visit = DoctorRun(KEY, repair=True, yes=True, save=None)
    await visit.run(patient.url, patient.subjects.prefix)
    visit.show()
    with pytest.raises(CommandFailed, match="this log is not damaged"):
        visit.end()
    assert await patient.log.stands() == before


# -- beside others -----------------------------------------------------------------------------------------------------


async def test_a_repair_forgets_no_outcome_however_old(patient: Patient) -> None:
    """Servers may be set to remember them for longer than any doctor knows."""
    await patient.live()
    for raw in patient.log.messages.values():
        raw.change(at_ms=1, forget_before_ms=0)
    await garbage(patient.log)
    await patient.log.store()
    assert (await patient.visit(repair=True, yes=True))["repairedBy"]
    assert set((await patient.client.state("ws", "cs")).outcomes) == {"r1", "r2", "r3", "r4"}


async def test_who_writes_meanwhile_is_not_written_over_and_it_can_be_run_again(patient: Patient) -> None:
    await patient.live()
    without_id(patient.log.messages[8])
    await patient.log.store()
    found = await examine(patient.stores, KEY)
    await patient.js.publish(patient.log.subject, b"meanwhile")
    with pytest.raises(FencedError):
        await repair(patient.stores, found, "doctor")
    await patient.repaired()
    assert await patient.goes_on() == ALL


async def test_nothing_is_wrong_with_a_log_that_is_written_and_purged_while_it_is_read(patient: Patient) -> None:
    stop = False

    async def edit() -> None:
        number = 0
        while not stop:
            number += 1
            updates = [Set("a", number), Set(f"v{number % 7}", "x" * 500), Derive("d", "sum", {"of": ["a"]})]
            await patient.client.enqueue_updates_with_reply("ws", "cs", updates)  # type: ignore[arg-type]

    owners = serving(patient.js, patient.subjects, patient.engine, checkpoint_bytes=1024, history_for=0)
    async with owners, anyio.create_task_group() as group:
        group.start_soon(edit)
        firsts = set()  # type: ignore[var-annotated]
        while len(firsts) < 8:
            told = await patient.visit()
            assert (told["damaged"], told["notes"] in ([], [EMPTY])) == (False, True)
            firsts.add(told["first"])
        stop = True


async def test_an_owner_that_holds_the_change_set_goes_on_with_what_the_repair_left(patient: Patient) -> None:
    """What it has in memory is no longer so: it is fenced, and loads again."""
    client = patient.client
    await patient.live()
    async with serving(patient.js, patient.subjects, patient.engine, ack_wait=1.0):
        edit = await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 11)], wait="derived")
        await patient.js.delete_message(patient.log.stream, commit_of(edit))
        assert (await patient.visit(repair=True, yes=True))["findings"][0]["lost"] == "edits"
        await client.enqueue_updates_with_reply("ws", "cs", [Set("b", 21)], wait="derived")
        assert values_of(await client.values("ws", "cs")) == ALL | {"b": 21, "s": 31, "t": 52}
    assert await patient.goes_on() == ALL | {"b": 21, "s": 31, "t": 52}


async def test_the_command_as_a_process(patient: Patient, tmp_path: Path) -> None:
    await patient.live()
    raw = patient.log.messages[5]
    raw.data = raw.data[:-30]
    await patient.log.store()
    place = ("--nats", patient.url, "--prefix", patient.subjects.prefix)
    told = await rebaser("doctor", "ws", "cs", *place)
    assert told.returncode == 1
    assert told.stderr == (
        "rebaser: the log is damaged; to see what a repair does, run `rebaser doctor ws cs --repair`\n"
    )
    assert "LOST: the edits" in told.stdout
    got = await rebaser("get", "ws", "cs", *place)
    assert (got.returncode, got.stdout) == (1, "")
    assert "commit 5 is damaged" in got.stderr
    assert "`rebaser doctor ws cs`" in got.stderr
    dry = await rebaser("doctor", "--repair", "ws", "cs", "--save", str(tmp_path / "saved"), *place)
    assert dry.returncode == 0
    assert "request r3" in dry.stdout
    assert "values c, u" in dry.stdout
    assert "nothing was changed" in dry.stdout
    assert (tmp_path / "saved" / "ws.cs-5.payload").read_bytes() == raw.data
    assert json.loads((tmp_path / "saved" / "ws.cs-5.json").read_text()) == raw.headers
    done = await rebaser("doctor", "ws", "cs", "--repair", "--yes", *place)
    assert (done.returncode, done.stderr) == (0, "")
    assert "repaired by commit 9" in done.stdout
    assert not (await patient.visit())["damaged"]


def values_of(values: dict[str, Value]) -> dict[str, Any]:
    return {id_: value.value for id_, value in values.items() if value.error is None}


@pytest.mark.parametrize("damage", ["removed", "garbled"])
async def test_a_change_set_stays_protected_if_the_commit_that_protects_it_is_lost(
    patient: Patient, damage: str
) -> None:
    await patient.live()
    async with serving(patient.js, patient.subjects, patient.engine):
        mark = commit_of(await patient.client.protect("ws", "cs"))
        await patient.client.create_branch("ws", "fix", "cs")
        await patient.client.enqueue_updates_with_reply("ws", "fix", [Set("a", 11)], wait="derived")
        await patient.client.apply("ws", "fix", wait="derived")
    await patient.log.read()
    if damage == "removed":
        del patient.log.messages[mark]
    else:
        patient.log.messages[mark].data = b"\xff" * 50
    await patient.log.store()
    told = await patient.repaired()
    assert [one["sequence"] for one in told["findings"]] == [mark]
    assert any("protects the change set is lost" in note for note in told["notes"])
    state = await patient.client.state("ws", "cs")
    assert (state.protected, list(state.taken)) == (True, ["fix"])


@pytest.mark.parametrize("damage", ["removed", "garbled"])
async def test_a_branch_whose_apply_is_lost_can_be_applied_again(patient: Patient, damage: str) -> None:
    await patient.live()
    async with serving(patient.js, patient.subjects, patient.engine):
        await patient.client.create_branch("ws", "fix", "cs")
        await patient.client.enqueue_updates_with_reply("ws", "fix", [Set("a", 11)], wait="derived")
        applied = commit_of(await patient.client.apply("ws", "fix"))
        await patient.client.enqueue_updates_with_reply("ws", "cs", [Set("f", 6)], wait="derived")
    await patient.log.read()
    if damage == "removed":
        del patient.log.messages[applied]
    else:
        patient.log.messages[applied].data = b"\xff" * 50
    await patient.log.store()
    told = await patient.repaired()
    assert [(one["sequence"], one["lost"]) for one in told["findings"]] == [(applied, "edits")]
    assert (await patient.client.state("ws", "cs")).taken == {}  # so the target does not refuse it as `stale`
    assert await patient.goes_on() == ALL | {"f": 6}
