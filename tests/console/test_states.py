"""The change sets that the console has loaded: how ids with a prefix are found, when a state is loaded again, and how
many are kept."""

from array import array
from collections.abc import Iterable
from threading import get_ident
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rebaser.console.api.values import KINDS, Group, _group, _search, matching_ids, search_ids
from rebaser.console.reading import states
from rebaser.console.reading.kept import Kept
from rebaser.console.reading.states import BrowsedState, StateCache, span, start_after
from rebaser_client import Derive, RebaserClient, Set, UnprocessableError, Unset
from rebaser_client.load_progress import LOADING
from rebaser_core.ids import ChangeSetKey
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.values import Fault

IDS = st.lists(st.text(st.sampled_from("ab/~\U0010fffe"), min_size=1, max_size=5), unique=True).map(sorted)


@given(IDS, st.text(st.sampled_from("ab/~"), max_size=3))
def test_a_span_has_exactly_the_ids_with_the_prefix(ids: list[str], prefix: str) -> None:
    low, high = span(ids, prefix)
    assert ids[low:high] == [id_ for id_ in ids if id_.startswith(prefix)]


def test_no_id_begins_with_the_last_character() -> None:
    assert span(["a", "b"], "\U0010ffff") == (2, 2)
    assert span(["a", "b"], "a\U0010ffff") == (1, 1)


@given(IDS, st.text(st.sampled_from("ab/~"), min_size=1, max_size=3))
def test_a_page_begins_behind_an_id_or_behind_a_whole_group(ids: list[str], after: str) -> None:
    rest = ids[start_after(ids, after, 0) :]
    assert rest == [id_ for id_ in ids if id_ > after and not (after.endswith("/") and id_.startswith(after))]


def state_of(ids: Iterable[str], last: int = 1) -> ChangeSetState:
    state = ChangeSetState()
    for id_ in ids:
        state.cells.apply(Set(id_, 1), 1)
    state.last = last
    return state


def test_many_ids_are_sorted_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "SORTED_AT_ONCE", 10)
    names = [f"v{number * 7919 % 1000}" for number in range(1000)]
    assert BrowsedState(state_of(names)).ids == sorted(names)


@given(st.lists(st.text(st.sampled_from("ab/~\U0010fffe"), max_size=4)), st.integers(1, 9))
def test_slices_of_any_length_are_merged_in_order(ids: list[str], length: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(states, "SORTED_AT_ONCE", length)
        assert states.sorted_ids(iter(ids)) == sorted(ids)


@given(
    st.lists(st.text(st.sampled_from("abAİΣ/ß"), min_size=1, max_size=6), unique=True, max_size=30),
    st.text(st.sampled_from("abAİΣ/ß *"), min_size=1, max_size=4),
)
@example(["ΑΣΒ"], "ΑΣ*")
def test_a_search_finds_what_looking_at_each_id_would(ids: list[str], words: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(states, "IDS_PER_TEXT", 3)
        loaded = BrowsedState(state_of(ids))
        assert _search(loaded, words=words) == search_ids(sorted(ids), words)


@pytest.mark.anyio
@pytest.mark.parametrize("few", [0, 10**6])
@pytest.mark.parametrize(
    "group",
    [
        *(Group(state) for state in ("all", "error", "stale")),
        *(Group(kind=kind) for kind in KINDS[1:]),
        Group(function="sum"),
        Group("error", function="sum"),
        Group("stale", "derived"),
    ],
    ids=str,
)
async def test_what_is_kept_of_a_search_are_places_and_no_ids(
    group: Group, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids would stay in memory, uncounted, after their state was replaced."""
    monkeypatch.setattr(states, "LOOKUP_FACTOR", few)
    filled = state_of([f"{letter}/{number}" for letter in "ab" for number in range(50)])
    for number in range(0, 50, 3):
        id_ = f"b/{number}"
        filled.cells.apply(Derive(id_, "sum", {"values": [f"a/{number % 2}"]}), 2)
        filled.cells.store_result(id_, None, Fault("failed", "it fails", id_))
    filled.cells.apply(Unset("b/1"), 2)
    filled.roots["a/0"] = 2
    loaded = BrowsedState(filled)
    assert (loaded.stale[:2], loaded.errors[:2]) == (["b/0", "b/12"], ["b/15", "b/21"])
    kept = Kept()
    console = cast("Any", SimpleNamespace(kept=kept))

    async def found(words: str, prefix: str) -> list[str]:
        return list(await matching_ids(console, loaded, words=words, group=group, prefix=prefix))

    whole = await found("", "")
    assert whole == [id_ for id_ in loaded.ids if id_ in set(_group(loaded, group=group))]
    assert whole != []
    for words in ("1", "*2", ""):
        for prefix in ("", "b/", "b/1", "c"):
            expected = [id_ for id_ in search_ids(whole, words) if id_.startswith(prefix)]
            for _ in range(2):
                assert await found(words, prefix) == expected
    entries = [entry for entry, _, _ in kept._entries.values()]
    assert entries
    assert all(type(entry) is array for entry in entries)
    assert kept.bytes >= sum(entry.itemsize * len(entry) for entry in entries)
    changed = BrowsedState(state_of(["1"]))
    assert list(await matching_ids(console, changed, words="1", group=Group(), prefix="")) == ["1"]


@pytest.mark.parametrize("few", [0, 10**6])
@pytest.mark.parametrize("other", ["0", "aa", "c"])
def test_an_id_that_is_not_there_has_no_place(other: str, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "LOOKUP_FACTOR", few)
    loaded = BrowsedState(state_of(["a", "b"]))
    assert list(loaded.places(["a", "b"])) == [0, 1]
    with pytest.raises(AssertionError, match=other):
        loaded.places(sorted(["a", "b", other]))


class Installation:
    """A client of change sets that have one newest commit each."""

    def __init__(self) -> None:
        self.newest: dict[str, int] = {}
        self.loads: list[str] = []

    async def branch(self, _: str, change_set: str) -> Any:
        found = self.newest.get(change_set)
        return None if found is None else SimpleNamespace(sequence=found)

    async def state(self, _: str, change_set: str) -> ChangeSetState:
        self.loads.append(change_set)
        return state_of(["a", "b"], self.newest[change_set])


def key(name: str) -> ChangeSetKey:
    return ChangeSetKey("ws", name)


@pytest.mark.anyio
async def test_a_state_is_loaded_again_only_after_a_commit_and_a_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(states, "time", SimpleNamespace(monotonic=lambda: clock.now))
    installation, cache = Installation(), StateCache()
    client = cast("RebaserClient", installation)
    with pytest.raises(UnprocessableError, match="no commit"):
        await cache.get(client, key("a"))
    installation.newest["a"] = 1
    first = await cache.get(client, key("a"))
    assert await cache.get(client, key("a")) is first
    installation.newest["a"] = 2
    monkeypatch.setattr(states, "RELOAD_FACTOR", 4)
    assert (await cache.get(client, key("a"))).state.last == 2
    load = Installation.state

    async def slow(self: Installation, workspace: str, change_set: str) -> ChangeSetState:
        clock.now += 3.0
        return await load(self, workspace, change_set)

    monkeypatch.setattr(Installation, "state", slow)
    installation.newest["a"] = 3
    assert (await cache.get(client, key("a"))).state.last == 3
    installation.newest["a"] = 4
    clock.now += 11.9
    assert (await cache.get(client, key("a"))).state.last == 3, "it took three seconds, so twelve are to pass"
    clock.now += 0.2
    assert (await cache.get(client, key("a"))).state.last == 4


@pytest.mark.anyio
async def test_it_is_told_how_far_a_loading_is(monkeypatch: pytest.MonkeyPatch) -> None:
    installation, cache, load = Installation(), StateCache(), Installation.state
    installation.newest["a"] = 1
    told: list[tuple[str, int]] = []

    def note() -> None:
        found = cache.loading(key("a"))
        assert found is not None
        assert found[1] >= 0
        told.append((found[0].stage, found[0].bytes))

    async def reported(self: Installation, workspace: str, change_set: str) -> ChangeSetState:
        progress = LOADING.get()
        assert progress is not None
        progress.begin("checkpoint", 100)
        progress.add(40)
        assert (progress.done, progress.total) == (40, 100)
        note()
        return await load(self, workspace, change_set)

    def sort(state: ChangeSetState) -> BrowsedState:
        note()
        return BrowsedState(state)

    monkeypatch.setattr(Installation, "state", reported)
    monkeypatch.setattr(states, "BrowsedState", sort)
    assert cache.loading(key("a")) is None
    await cache.get(cast("RebaserClient", installation), key("a"))
    assert (told, cache.loading(key("a")), LOADING.get()) == ([("checkpoint", 40), ("sort", 40)], None, None)


@pytest.mark.anyio
async def test_large_modules_are_not_imported_in_the_thread_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    installation, threads = Installation(), list[int]()
    installation.newest["a"] = 1
    monkeypatch.setattr(states, "import_reader", lambda: threads.append(get_ident()))
    await StateCache().get(cast("RebaserClient", installation), key("a"))
    assert len(threads) == 1
    assert threads != [get_ident()]


@pytest.mark.anyio
async def test_few_states_are_loaded_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    installation, cache, load = Installation(), StateCache(), Installation.state
    running, most, full = 0, 0, anyio.Event()

    async def counted(self: Installation, workspace: str, change_set: str) -> ChangeSetState:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == states.MAX_LOADS:
            full.set()
        await full.wait()  # the others may still be in a thread, where they count as blocked
        await anyio.wait_all_tasks_blocked()
        running -= 1
        return await load(self, workspace, change_set)

    monkeypatch.setattr(Installation, "state", counted)
    installation.newest = dict.fromkeys("abcdef", 1)
    async with anyio.create_task_group() as group:
        for name in installation.newest:
            group.start_soon(cache.get, cast("RebaserClient", installation), key(name))
    assert (most, sorted(installation.loads)) == (states.MAX_LOADS, list("abcdef"))


@pytest.mark.anyio
async def test_viewers_of_one_change_set_share_a_load_and_do_not_wait_for_each_others_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    installation, cache, branch, answered = Installation(), StateCache(), Installation.branch, anyio.Event()
    installation.newest["a"], asked = 1, 0

    async def held(self: Installation, workspace: str, change_set: str) -> Any:
        nonlocal asked
        asked += 1
        await answered.wait()
        return await branch(self, workspace, change_set)

    monkeypatch.setattr(Installation, "branch", held)
    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(cache.get, cast("RebaserClient", installation), key("a"))
        await anyio.wait_all_tasks_blocked()
        assert asked == 5
        answered.set()
    assert installation.loads == ["a"]


@pytest.mark.anyio
async def test_what_was_not_read_for_longest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    installation, cache = Installation(), StateCache()
    client = cast("RebaserClient", installation)
    installation.newest = {"a": 1, "b": 1, "c": 1}
    monkeypatch.setattr(states, "MAX_MEMORY", 2 * (await cache.get(client, key("a"))).memory)
    for name in ("b", "a", "c", "a"):
        await cache.get(client, key(name))
    assert installation.loads == ["a", "b", "c"]
    await cache.get(client, key("b"))
    assert installation.loads == ["a", "b", "c", "b"]
    monkeypatch.setattr(states, "MAX_MEMORY", 0)
    await cache.get(client, key("c"))
    await cache.get(client, key("c"))
    assert installation.loads == ["a", "b", "c", "b", "c"], "the newest one stays, however large"
