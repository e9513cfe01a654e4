"""The doctor and checkpoints that are lost in part or whole, that belong to another commit, or whose store is
unavailable."""

from dataclasses import replace
from pathlib import Path

import pytest

from rebaser.doctor.examination import examine
from rebaser_client import Set, Update
from rebaser_core.commit import CheckpointRef
from rebaser_core.errors import TransientError
from rebaser_core.streams.subjects import Subjects
from tests.support.damage import delta_in_blob
from tests.support.owners import serving
from tests.support.patient import ALL, KEY, Patient

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]


@pytest.mark.parametrize("in_checkpoint", [True, False])
async def test_a_blob_store_that_is_away_is_no_damage(patient: Patient, in_checkpoint: bool) -> None:
    """A repair would lose what the store holds."""

    class Away:
        async def put(self, data: bytes) -> str:
            raise TransientError("away", code="blob_store")

        async def get(self, address: str, *, max_bytes: int = 0) -> bytes:
            raise TransientError("away", code="blob_store")

        async def has(self, address: str) -> bool:
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
    assert "refers to a checkpoint that cannot be read" in told["findings"][0]["problem"]
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
    """If the newest part is lost, the checkpoint before is intact. If the base is lost, both are, but the history has
    everything."""
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
    """The doctor finds no blob, and reports where it searched. It deletes nothing, so another repair can restore
    everything."""
    await patient.live(checkpoint_after=2)
    for sequence in range(1, 5):  # commits that a second checkpoint would purge
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
    assert told["findings"][0]["problem"] == "refers to a checkpoint of commit 8, which is not before it"
    assert await patient.goes_on() == ALL
