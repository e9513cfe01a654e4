"""Rebases while a deposed leader of NATS answers reads: it does not know the newest commits of the target."""

from typing import Any

import pytest

from rebaser.change_set.loading import open_log
from rebaser.change_set.log.commit_log import CommitLog
from rebaser.change_set.readers.target_reader import read_theirs
from rebaser.runtime.context import Context
from rebaser.settings import Settings
from rebaser_client import RebaserClient, Set, Update
from rebaser_client.jetstream import JetStream
from rebaser_core.branches.branch import Apply, Rebase
from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects
from rebaser_core.thresholds import Thresholds, forced
from tests.support.contexts import context_of
from tests.support.history import commit_of
from tests.support.owners import Engine, serving

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]

BY_STATE = Thresholds(replay_max_bytes=0, fold_step=1)


class Applied:
    """The branch `fix` was applied to `main`, and the branch was not notified."""

    def __init__(self, context: Context, commits: CommitLog, positions: dict[str, int]) -> None:
        self.context = context
        self.commits = commits
        self.first = positions["first"]  # the first commit of `main`
        self.seen = positions["seen"]  # the position of the branch that was applied
        self.applied = positions["applied"]  # the commit of `main` that applied it

    def outdated(self, monkeypatch: pytest.MonkeyPatch, call: str, *, until: int) -> None:
        """Let `call` of the reader find only the first commit of `main`, up to its read number `until`."""
        reader, reads = self.context.reader, 0
        read = getattr(reader, call)

        async def answer(key: ChangeSetKey, at: Any = None) -> Any:
            nonlocal reads
            reads += key.change_set == "main"
            return await read(key, self.first if key.change_set == "main" and reads < until else at)

        monkeypatch.setattr(reader, call, answer)
        monkeypatch.setattr("rebaser.change_set.readers.target_reader.RELOAD_MIN", 0.0001)


@pytest.fixture
async def place(js: JetStream, subjects: Subjects, nats_url: str, monkeypatch: pytest.MonkeyPatch) -> Applied:
    async def nobody_asks(*_: object) -> None:
        return None

    monkeypatch.setattr("rebaser.change_set.processor.request_settling", nobody_asks)
    engine = Engine()
    engine.go.set()
    async with (
        RebaserClient.connect(nats_url, prefix=subjects.prefix) as client,
        serving(js, subjects, engine),
    ):

        async def edit(name: str, *updates: Update, **options: Any) -> int:
            return commit_of(await client.enqueue_updates_with_reply("ws", name, updates, **options))

        positions = {"first": await edit("main", Set("a", 1))}
        await client.create_branch("ws", "fix")
        positions["seen"] = await edit("fix", Set("a", 2), wait="derived")
        positions["applied"] = await edit("main", action=Apply("fix"))
    context = context_of(js, subjects, Settings(server_id="test"), engine)
    return Applied(context, await open_log(context, ChangeSetKey("ws", "fix")), positions)


@pytest.mark.parametrize("until", [3, 100], ids=["shown later", "never shown"])
async def test_an_apply_that_is_not_shown_is_looked_up_again(
    place: Applied, monkeypatch: pytest.MonkeyPatch, until: int
) -> None:
    place.outdated(monkeypatch, "newest_commit", until=until)
    settling = Rebase(upto=place.applied, settles=place.seen)
    if until == 3:
        assert (await read_theirs(place.context, place.commits, settling)).source.sequence == place.applied
    else:
        with pytest.raises(UnprocessableError, match="is not in the log"):
            await read_theirs(place.context, place.commits, settling)


@pytest.mark.parametrize("until", [3, 100], ids=["shown later", "never shown"])
async def test_an_apply_that_the_state_of_the_target_names_is_looked_up_again(
    place: Applied, monkeypatch: pytest.MonkeyPatch, until: int
) -> None:
    """Otherwise, the branch would not be closed, although the target has all of its edits."""
    place.outdated(monkeypatch, "commit_at", until=until)
    with forced(BY_STATE):
        theirs = await read_theirs(place.context, place.commits, Rebase())
    assert theirs.applied_in == (place.applied if until == 3 else 0)
    assert set(theirs.agreed) == ({"a"} if until == 3 else set())
