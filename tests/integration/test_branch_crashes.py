"""What becomes of forks, applies and rebases when owners end around an append, when another log is newer than this
release, and when the other change set is closed or deleted meanwhile."""

import pytest

from rebaser.change_set.log.commit_log import CommitLog
from rebaser.change_set.log.encoded_commit import EncodedCommit
from rebaser.change_set.readers import offer_reader
from rebaser_client import RebaserClient, Set
from rebaser_client.jetstream import JetStream
from rebaser_client.log.branch_changes import Changes, changes_of
from rebaser_client.log.commits import CommitReader
from rebaser_core.branches.branch import Apply, Create, Rebase
from rebaser_core.commit import Commit, Kind
from rebaser_core.encoding.envelope import MESSAGE_VERSION
from rebaser_core.errors import FencedError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects
from tests.support.history import check_history, commit_of, commits_of, replayed
from tests.support.owners import Engine, serving
from tests.support.workspace import edit, refusal, stands

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]


@pytest.mark.usefixtures("no_ack_wait")
@pytest.mark.parametrize("landed", [False, True])
async def test_an_owner_that_ends_around_its_append_rebases_once(
    js: JetStream,
    subjects: Subjects,
    client: RebaserClient,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    landed: bool,
) -> None:
    append = CommitLog.publish
    failures = [True]

    async def publish(commits: CommitLog, encoded: EncodedCommit) -> int:
        if encoded.commit.kind is not Kind.REPLAY or not failures:
            return await append(commits, encoded)
        failures.clear()
        if landed:
            await append(commits, encoded)
        raise FencedError("as if another owner had appended")

    async with serving(js, subjects, engine):
        await edit(client, "main", Set("a", 1))
        await client.create_branch("ws", "fix", follow="manual")
        await edit(client, "fix", Set("b", 1))
        newest = await edit(client, "main", Set("a", 2), Set("b", 2))
        monkeypatch.setattr(CommitLog, "publish", publish)
        done = await client.rebase("ws", "fix")
        assert (done.conflicts, not failures) == (1, True)
        commits = await commits_of(client, "ws", "fix")
    assert [one.source.sequence for one in commits if one.kind is Kind.REPLAY and one.source] == [newest]
    check_history(commits)
    assert await stands(client, "fix") == {"a": 2, "b": 1}


@pytest.mark.parametrize(
    "action", [Create("main"), Apply("fix", allow_stale=True), Rebase()], ids=lambda one: type(one).__name__
)
async def test_a_log_that_only_a_newer_release_reads_ends_a_request_after_a_while(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine, action: Create | Apply | Rebase
) -> None:
    """Meanwhile, other servers may decide it. The change set that was asked goes on."""
    async with serving(js, subjects, engine):
        await edit(client, "main", Set("a", 1))
        await client.create_branch("ws", "fix", follow="manual")
        await edit(client, "fix", Set("a", 2))
    asked, read = {Create: ("new", "main"), Apply: ("main", "fix"), Rebase: ("fix", "main")}[type(action)]
    subject = subjects.commits(ChangeSetKey("ws", read))
    newest = await js.last(subjects.commits_stream, subject)
    assert newest is not None
    headers = {name: text for name, text in newest.headers.items() if not name.startswith("Nats-")}
    await js.publish(subject, newest.data, headers | {MESSAGE_VERSION: "99"})
    async with serving(js, subjects, engine, retry_for=0):
        assert await refusal(client.enqueue_updates_with_reply("ws", asked, (), action=action)) == "unsupported_version"
        await edit(client, asked, Set("later", 1))
    assert (await stands(client, asked))["later"] == 1


@pytest.mark.parametrize("meanwhile", ["edited", "rebased", "closed", "deleted"])
async def test_a_branch_is_applied_as_it_was_when_it_was_read(
    js: JetStream,
    subjects: Subjects,
    client: RebaserClient,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    meanwhile: str,
) -> None:
    """Whatever becomes of it while the owner of the target reads its log."""
    done: list[str] = []

    async def slow_changes(reader: CommitReader, key: ChangeSetKey, commit: Commit, **options: int) -> Changes:
        if not done:
            done.append(meanwhile)
            match meanwhile:
                case "edited":
                    await edit(client, "fix", Set("b", 3))
                case "rebased":
                    await client.rebase("ws", "fix")
                case "closed":
                    await client.close_change_set("ws", "fix")
                case "deleted":
                    await client.delete_change_set("ws", "fix")
        return await changes_of(reader, key, commit, **options)

    async with serving(js, subjects, engine):
        await edit(client, "main", Set("a", 1))
        await client.create_branch("ws", "fix", follow="manual")
        await edit(client, "fix", Set("b", 2))
        await edit(client, "main", Set("a", 9))
        monkeypatch.setattr(offer_reader, "changes_of", slow_changes)
        applied = commit_of(await client.enqueue_updates_with_reply("ws", "main", (), action=Apply("fix")))
        assert await stands(client, "main") == {"a": 9, "b": 2}
        if meanwhile in ("edited", "rebased"):
            await replayed(client, "ws", "fix", applied)
        info = await client.branch("ws", "fix")
    assert done == [meanwhile]
    assert info is not None
    statuses = {"edited": "open", "rebased": "applied", "closed": "abandoned", "deleted": "deleted"}
    assert info.status == statuses[meanwhile]
    assert (await stands(client, "fix")).get("b") == {"edited": 3, "deleted": None}.get(meanwhile, 2)


async def test_a_branch_whose_target_is_deleted_goes_on_alone(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine
) -> None:
    async with serving(js, subjects, engine):
        await edit(client, "main", Set("a", 1))
        await client.create_branch("ws", "fix", follow="auto")
        await edit(client, "main", Set("a", 2))
        await client.delete_change_set("ws", "main")
        await edit(client, "fix", Set("b", 1))
        rebase = client.enqueue_updates_with_reply("ws", "fix", (), action=Rebase())
        assert await refusal(rebase) == "deleted"
    assert await stands(client, "fix") == {"a": 1, "b": 1}
    assert Kind.REPLAY not in [one.kind for one in await commits_of(client, "ws", "fix")]
