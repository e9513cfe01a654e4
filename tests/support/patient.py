"""A change set whose log tests damage, and the calls of `rebaser doctor` that examine and repair it."""

import json
from pathlib import Path
from typing import Any

import pytest

from rebaser.change_set.loading import open_log
from rebaser.change_set.log import checkpointer
from rebaser.cli.commands.maintenance.doctor import DoctorRun
from rebaser.cli.errors import CommandFailed
from rebaser.doctor.examination import Stores
from rebaser.settings import Settings
from rebaser_client import Derive, RebaserClient, Remove, Set, Update
from rebaser_client.blobs import open_blobs
from rebaser_client.jetstream import JetStream
from rebaser_core.commit import CheckpointRef
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects
from tests.support.contexts import context_of
from tests.support.damage import DamagedLog
from tests.support.owners import Engine, serving

KEY = ChangeSetKey("ws", "cs")

# Commits 1, 3, 5 and 7 decide these edits, and the commit after each holds the results of its update.
EDITS: list[list[Update]] = [
    [Set("a", 1), Set("b", 2), Derive("s", "sum", {"of": ["a", "b"]}), Derive("t", "sum", {"of": ["s", "b"]})],
    [Set("a", 10)],
    [Set("c", 5), Derive("u", "sum", {"of": ["c", "a"]}), Set("e", 1)],
    [Set("b", 20), Remove("e")],
]
EMPTY = "the log is empty: no request was ever decided, or all messages were purged"
ALL = {"a": 10, "b": 20, "c": 5, "s": 30, "t": 50, "u": 15}


class Patient:
    """A change set with a log of its own, and the calls of `rebaser doctor` for it."""

    def __init__(self, js: JetStream, subjects: Subjects, url: str, client: RebaserClient) -> None:
        self.js, self.subjects, self.url, self.client = js, subjects, url, client
        self.log = DamagedLog(js, subjects, KEY)
        self.stores = Stores(js, subjects, open_blobs(None, js, subjects.blobs_bucket))
        self.engine = Engine()
        self.engine.go.set()

    async def live(self, checkpoint_after: int = 0) -> None:
        """Make the edits, with a checkpoint after the given number of them, and read the log into `log`."""
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
        """Run `rebaser doctor` for the change set, and return its JSON output."""
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
        """Diagnose, make a dry run, and repair. Return the diagnosis.

        Checks that the dry run changes nothing, and that the log is readable after the repair.
        """
        before = await self.log.stands()
        told = await self.visit()
        assert told["damaged"]
        assert (await self.visit(repair=True)) == told
        assert await self.log.stands() == before
        await self.js.purge(self.subjects.tasks_stream, self.subjects.task(KEY))
        done = await self.visit(repair=True, yes=True)
        # The repair publishes a task.
        assert await self.js.last(self.subjects.tasks_stream, self.subjects.task(KEY)) is not None
        assert done == told | {"repairedBy": done["repairedBy"]}
        after = await self.visit()
        assert (after["damaged"], after["checkpoint"]) == (False, done["last"])
        assert not (await self.visit(repair=True, yes=True))["repairedBy"]
        return told

    async def goes_on(self) -> dict[str, Any]:
        """Edit again, and compare all derived values with a new change set that has the same definitions. Return the
        values."""
        async with serving(self.js, self.subjects, self.engine):
            await self.client.enqueue_updates_with_reply("ws", "cs", [Set("z", 1)], wait="derived")
            values = await self.client.values("ws", "cs")
            updates = list((await self.client.state("ws", "cs")).updates())
            await self.client.enqueue_updates_with_reply("ws", "copy", updates, wait="derived")
            assert await self.client.values("ws", "copy") == values
        del values["z"]
        return {id_: value.value for id_, value in values.items() if value.error is None}
