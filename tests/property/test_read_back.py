"""What is said to read back surely is what a reader finds; and commits of requests that set values are surely read."""

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rebaser_core.commit import Applied, Commit, Decision, Kind, Outcome
from rebaser_core.envelope import CBOR, dumps, loads
from rebaser_core.errors import RebaserError
from rebaser_core.ids import RequestId
from rebaser_core.messages import check_commit, decode_commit, encode_commit
from rebaser_core.messages.read_back import surely_reads_back
from rebaser_core.updates import Derive, Remove, Set

naturals = st.integers(0, 2**40)
ids = st.sampled_from(["a", "cart/1", "ä"])
values = st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.floats(-1e9, 1e9), st.just([{"k": 1}]))
usual = st.builds(Set, ids, values)
updates = st.one_of(usual, usual, st.builds(Remove, ids), st.just(Derive("d", "sum", {"of": ("a",)})))
told = st.builds(Decision, naturals, ids.map(RequestId), st.sampled_from(Outcome), st.integers(1, 9))
decisions = st.one_of(told, st.builds(Decision, naturals, ids.map(RequestId), st.just(Outcome.ERROR), code=ids))
commits = st.builds(
    Commit, ids, naturals, st.just(Kind.REBASE), naturals, ids,
    st.one_of(st.none(), st.builds(Applied, ids, naturals)), st.one_of(st.none(), naturals),
    st.lists(decisions, max_size=3).map(tuple), st.lists(updates, max_size=3).map(tuple),
    forget_before_ms=naturals, debt=st.integers(0, 3),
)  # fmt: skip
odd = st.one_of(values, st.sampled_from(["", "\x07", "rebase", "success", -1, b"", [], {}, {"op": "set"}]))


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Of all that stands in a tree."""
    inside = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path, *(found for key, child in inside for found in places(child, (*path, key)))]


@settings(max_examples=600)
@given(commits, st.data())
def test_what_reads_back_surely_is_what_a_reader_finds(commit: Commit, data: st.DataObject) -> None:
    headers, payload = encode_commit(commit)
    check_commit(commit, headers, payload)
    tree: Any = copy.deepcopy(loads(CBOR, payload))
    path = data.draw(st.sampled_from(places(tree)[1:]))
    *way, last = path
    node = tree
    for key in way:
        node = node[key]
    if data.draw(st.booleans()):
        node[last] = data.draw(odd)
    elif isinstance(node, dict):
        node[data.draw(st.sampled_from(["id", "debt", "other", "checkpoint", "message"]))] = data.draw(odd)
    else:
        node.append(data.draw(odd))
    damaged = dumps(CBOR, tree)
    try:
        same = decode_commit(headers, damaged) == commit and decode_commit(headers, damaged).debt == commit.debt
    except RebaserError:
        same = False
    try:
        assert same or not surely_reads_back(commit, damaged)
    except RebaserError:
        assert not same


@given(commits.filter(lambda one: all(type(update) is Set for update in one.delta)))
def test_commits_of_requests_that_set_values_are_surely_read(commit: Commit) -> None:
    quiet = not any(one.code for one in commit.requests)
    version = encode_commit(commit)[0]["X-MESSAGE-VERSION"]
    assert surely_reads_back(commit, encode_commit(commit)[1]) == (quiet and version == "1")


@pytest.mark.parametrize("end", [-1, None])
def test_all_of_the_payload_is_read(end: int | None) -> None:
    commit = Commit("c", 1, Kind.REBASE, 1, "o", None, None, (), (Set("a", 1),))
    payload = encode_commit(commit)[1]
    other = payload[:end] if end else payload + b"\0"
    with pytest.raises(RebaserError):
        check_commit(commit, encode_commit(commit)[0], other)
