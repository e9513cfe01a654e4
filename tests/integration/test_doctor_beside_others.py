"""The doctor beside owners and other writers, in undamaged logs, and in logs that only a newer server may read."""

from typing import Any

import anyio
import cbor2
import pytest

from rebaser.cli.commands.maintenance.doctor import DoctorRun
from rebaser.cli.errors import CommandFailed
from rebaser.doctor.examination import examine
from rebaser.doctor.repair import repair
from rebaser_client import Derive, Set
from rebaser_client.jetstream import JetStream
from rebaser_core.commit import BlobRef, CheckpointRef
from rebaser_core.encoding.envelope import MESSAGE_VERSION
from rebaser_core.errors import FencedError
from rebaser_core.values import Value
from tests.support.damage import garbage, without_id
from tests.support.history import commit_of
from tests.support.owners import serving
from tests.support.patient import ALL, EMPTY, KEY, Patient

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]


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


async def test_a_repair_forgets_no_outcome_however_old(patient: Patient) -> None:
    """Servers may be configured to remember outcomes for longer than the doctor knows."""
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


@pytest.mark.usefixtures("no_ack_wait")
async def test_an_owner_that_holds_the_change_set_goes_on_with_what_the_repair_left(patient: Patient) -> None:
    """The owner's state is out of date: it is fenced, and loads the log again."""
    client = patient.client
    await patient.live()
    async with serving(patient.js, patient.subjects, patient.engine, ack_wait=1.0):
        edit = await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 11)], wait="derived")
        await patient.js.delete_message(patient.log.stream, commit_of(edit))
        assert (await patient.visit(repair=True, yes=True))["findings"][0]["lost"] == "edits"
        await client.enqueue_updates_with_reply("ws", "cs", [Set("b", 21)], wait="derived")
        assert values_of(await client.values("ws", "cs")) == ALL | {"b": 21, "s": 31, "t": 52}
    assert await patient.goes_on() == ALL | {"b": 21, "s": 31, "t": 52}


def values_of(values: dict[str, Value]) -> dict[str, Any]:
    return {id_: value.value for id_, value in values.items() if value.error is None}
