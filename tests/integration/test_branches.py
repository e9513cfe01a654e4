"""Change sets are created from others, once, whoever else creates or edits them; an impossible creation is refused."""

from datetime import UTC, datetime, timedelta

import anyio
import pytest

from rebaser.change_set.log.commit_log import CommitLog
from rebaser.change_set.log.encoded_commit import EncodedCommit
from rebaser_client import Derive, RebaserClient, RequestRejected, Set
from rebaser_client.jetstream import JetStream
from rebaser_core.commit import Kind
from rebaser_core.errors import FencedError, UnprocessableError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects
from tests.support.owners import Engine, serving
from tests.support.workspace import edit, stands

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]


async def refused(client: RebaserClient, name: str, parent: str | None = "main", **options: object) -> str:
    with pytest.raises(RequestRejected) as caught:
        await client.create_branch("ws", name, parent, **options, follow="manual")  # type: ignore[arg-type] # each has its own type
    return caught.value.code


async def test_what_cannot_be_created_is_refused_and_says_why(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine
) -> None:
    async with serving(js, subjects, engine):
        assert await refused(client, "fix") == "no_such_change_set"
        first = await edit(client, "main", Set("a", 1))
        assert await refused(client, "main") == "self"
        assert await refused(client, "fix", at=first + 100) == "no_such_position"
        assert await refused(client, "fix", at=0) == "no_such_change_set"
        assert await refused(client, "fix", target="other") == "not_its_target"
        # Although requests under this name were refused.
        made = await client.create_branch("ws", "fix", follow="manual")
        assert await refused(client, "fix") == "exists"
        assert await client.create_branch("ws", "fix", or_use=True, follow="manual") == await client.branch("ws", "fix")
        assert await refused(client, "fix", None, or_use=True) == "exists"
        assert await refused(client, "main", "fix") == "exists"
        with pytest.raises(RequestRejected, match="created this change set"):
            await client.revert("ws", "fix", made.sequence)
        with pytest.raises(RequestRejected, match="may have been edited"):
            await edit(client, "fix", Set("a", 2), expect_at=first)
        await edit(client, "fix", Set("a", 2), expect_at=made.sequence)
    async with serving(js, subjects, engine, history_for=0):
        assert await refused(client, "other") == "unsupported"
        await edit(client, "fix", Set("a", 3))  # the commits of a branch keep what its branches need
    assert [one.id for one in (await client.changes("ws", "fix")).changes] == ["a"]


async def test_the_answer_to_a_create_is_repeated_and_so_are_those_before_it(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine
) -> None:
    async with serving(js, subjects, engine):
        await edit(client, "main", Set("a", 1))
        with pytest.raises(RequestRejected) as first:
            await client.create_branch("ws", "fix", "none", request_id="one", follow="manual")
        made = await client.create_branch("ws", "fix", request_id="two", follow="manual")
        assert await client.create_branch("ws", "fix", request_id="two", follow="manual") == made
        with pytest.raises(RequestRejected) as again:
            await client.create_branch("ws", "fix", "none", request_id="one", follow="manual")
        assert first.value.response == again.value.response


async def test_a_closed_change_set_keeps_what_it_has(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine
) -> None:
    async with serving(js, subjects, engine):
        await edit(client, "main", Set("a", 1), Derive("b", "sum", {"of": ["a", "a"]}))
        made = await client.create_branch("ws", "v1", closed=True, wait="derived")
        assert made.status == "kept"
        with pytest.raises(RequestRejected) as caught:
            await edit(client, "v1", Set("a", 2))
        assert caught.value.code == "closed"
        assert await stands(client, "v1") == {"a": 1, "b": 2}
        assert await stands(client, "v1", made.sequence) in ({"a": 1, "b": 2}, {"a": 1, "b": None})


async def test_a_branch_is_created_from_what_its_parent_was_before_it_was_created_itself(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine
) -> None:
    async with serving(js, subjects, engine):
        first = await edit(client, "main", Set("a", 1))
        then = datetime.now(UTC)
        await anyio.sleep(0.01)
        second = await edit(client, "main", Set("a", 2))
        await client.create_branch("ws", "fix", at=first, follow="manual")
        await client.create_branch("ws", "deep", "fix", follow="manual")
        await edit(client, "deep", Set("a", 3))
        for name, at, origin in (("one", first, first), ("two", then, first), ("three", second, first)):
            made = await client.create_branch("ws", name, "deep", at=at, follow="manual")
            assert (made.origin, made.origin_sequence, made.target) == ("main", origin, "main")
            assert await stands(client, name) == {"a": 1}
        with pytest.raises(UnprocessableError, match="had no commit"):
            await client.create_branch("ws", "four", "deep", at=then - timedelta(hours=1), follow="manual")


@pytest.mark.usefixtures("no_ack_wait")
@pytest.mark.parametrize("landed", [False, True])
async def test_an_owner_that_ends_around_its_append_creates_it_once(
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
        if encoded.commit.kind is not Kind.CREATE or not failures:
            return await append(commits, encoded)
        failures.clear()
        if landed:
            await append(commits, encoded)
        raise FencedError("as if another owner had appended")

    async with serving(js, subjects, engine):
        first = await edit(client, "main", Set("a", 1))
        monkeypatch.setattr(CommitLog, "publish", publish)
        made = await client.create_branch("ws", "fix", follow="manual")
        assert (made.origin_sequence, not failures) == (first, True)
        assert [one.kind async for one in client.log("ws", "fix")].count(Kind.CREATE) == 1
        await edit(client, "fix", Set("b", 1))
    assert await stands(client, "fix") == {"a": 1, "b": 1}


async def test_of_two_creates_and_an_edit_the_first_in_the_queue_wins(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine
) -> None:
    async with serving(js, subjects, engine):
        await edit(client, "main", Set("a", 1))
    outcomes: dict[str, str] = {}
    done = anyio.Event()

    async def create(name: str, id_: str) -> None:
        try:
            await client.create_branch("ws", name, request_id=id_, follow="manual")
            outcomes[id_] = "created"
        except RequestRejected as error:
            outcomes[id_] = error.code
        if len(outcomes) == 3:
            done.set()

    async with anyio.create_task_group() as group:
        group.start_soon(create, "fix", "one")
        with anyio.fail_after(60):
            while await js.last(subjects.requests_stream, subjects.requests(ChangeSetKey("ws", "fix"))) is None:  # noqa: ASYNC110 - of NATS
                await anyio.sleep(0.01)
        group.start_soon(create, "fix", "two")
        await client.enqueue_updates("ws", "edited", [Set("b", 1)])
        group.start_soon(create, "edited", "three")
        async with serving(js, subjects, engine):
            with anyio.fail_after(60):
                await done.wait()
    assert outcomes == {"one": "created", "two": "exists", "three": "exists"}
    assert await stands(client, "edited") == {"b": 1}


async def test_nothing_is_left_to_do_once_a_change_set_is_created(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine
) -> None:
    """Otherwise, the sweeper would wake an owner, which would load all values."""
    async with serving(js, subjects, engine):
        await edit(client, "main", Set("a", 1))
        for number in range(5):
            await client.create_branch("ws", f"fix{number}", follow="manual")
            key = ChangeSetKey("ws", f"fix{number}")
            with anyio.fail_after(60):
                while await js.last(subjects.tasks_stream, subjects.task(key)) is not None:  # noqa: ASYNC110 - of NATS
                    await anyio.sleep(0.01)
                while await js.next(subjects.requests_stream, subjects.requests(key), 1) is not None:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
