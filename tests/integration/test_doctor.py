"""Logs damaged in many ways: what the doctor reports, what a repair keeps, and that work continues after it."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import cbor2
import pytest

from rebaser_client import Set
from rebaser_client.jetstream import JetStream
from rebaser_core.commit import BlobRef
from rebaser_core.encoding.envelope import APPLIED, DEBT, MESSAGE_TYPE, MESSAGE_VERSION
from rebaser_core.ids import RequestId
from rebaser_core.streams.subjects import Subjects
from tests.support.commands import rebaser
from tests.support.damage import DamagedLog, Raw, delta_in_blob, garbage, without_id
from tests.support.history import commit_of
from tests.support.owners import serving
from tests.support.patient import ALL, KEY, Patient

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]


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
    """Damage an edit."""
    del log.messages[5].headers[MESSAGE_TYPE]


async def no_headers(log: DamagedLog) -> None:
    """Damage an edit."""
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
    """Make everything unreadable except the type of the message in the headers."""
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
    """A damaged commit's statements about the queue are used only as far as they can be true."""
    await patient.live()
    raw = Raw(dict(patient.log.messages[7].headers), b"\xff")
    stream, _, _ = raw.headers[APPLIED].rpartition(":")
    raw.headers[APPLIED] = f"{stream}:{2**60}"
    patient.log.messages[9] = raw
    await patient.log.store()
    assert [one["lost"] for one in (await patient.repaired())["findings"]] == ["unknown"]
    assert await patient.goes_on() == ALL


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


@pytest.mark.parametrize("damage", ["removed", "garbled"])
async def test_a_change_set_stays_protected_if_the_commit_that_protects_it_is_lost(
    patient: Patient, damage: str
) -> None:
    await patient.live()
    async with serving(patient.js, patient.subjects, patient.engine):
        mark = commit_of(await patient.client.protect("ws", "cs"))
        await patient.client.create_branch("ws", "fix", "cs", follow="manual")
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
    assert any("protected the change set is lost" in note for note in told["notes"])
    state = await patient.client.state("ws", "cs")
    assert (state.protected, list(state.taken)) == (True, ["fix"])


@pytest.mark.parametrize("damage", ["removed", "garbled"])
async def test_a_branch_whose_apply_is_lost_can_be_applied_again(patient: Patient, damage: str) -> None:
    await patient.live()
    async with serving(patient.js, patient.subjects, patient.engine):
        await patient.client.create_branch("ws", "fix", "cs", follow="manual")
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
