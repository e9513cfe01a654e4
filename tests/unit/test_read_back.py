"""A commit that counts as read back is what a reader finds: each part of a commit and of its payload is damaged
once."""

import copy
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest

from rebaser_core.commit import Applied, Authorship, CheckpointRef, Commit, Computed, Decision, Kind, Outcome
from rebaser_core.encoding.envelope import (
    APPLIED,
    CBOR,
    CONTENT_TYPE,
    DEBT,
    MESSAGE_TYPE,
    MESSAGE_VERSION,
    Headers,
    dumps,
    loads,
)
from rebaser_core.errors import RebaserError
from rebaser_core.ids import RequestId
from rebaser_core.messages import check_commit, decode_commit, encode_commit, read_sweep_headers
from rebaser_core.messages.read_back import surely_reads_back
from rebaser_core.updates import Recompute, Remove, Set

ODD: list[Any] = [
    None, False, True, 0, 1, 2, 7, 8, 2**63, -1, 0.5, 1.0, "", "a", "c", "r1", "\x07", "success", "dead", "rebase",
    "dvu", b"", b"a", [], [1], {}, {"k": 1}, {"op": "set"}, {"op": "remove", "id": "a"}, [1, "r1", "success", 1, "c"],
    [1, "r1", "dead", 1],
]  # fmt: skip


ADDED = (
    "id",
    "debt",
    "covers",
    "other",
    "checkpoint",
    "requests",
    "delta",
    "applied",
    "forgetBeforeMs",
    "before",
    "authors",
    "reverts",
)
LISTS = ("delta", "requests", "recompute", "before", "authors")
CHECKPOINT = CheckpointRef(f"sha256:{'0' * 64}", 5, 6)
STOOD = (Set("v0", ["x"]), Set("a", 0))


def usual(count: int = 2, covers: int | None = 7) -> Commit:
    decided = tuple([Decision(at, RequestId(f"r{at}"), Outcome.SUCCESS, 1) for at in range(1, count + 1)])
    sets = (*[Set(f"v{at}", [at, {"k": None}]) for at in range(count)], Set("a", 1))
    return Commit("c", 8, Kind.REBASE, 9, "o", Applied("s", 9), covers, decided, sets, forget_before_ms=3, debt=1)


def historical(before: tuple[Any, ...] = STOOD) -> Commit:
    """Return a commit of version 3."""
    return replace(usual(), before=before, authors=(Authorship("ann", "why"), Authorship()))


def finds(commit: Commit, headers: Headers, payload: bytes) -> bool:
    """Return whether a reader of `headers` and `payload` finds `commit`, and a sweeper its position and debt."""
    try:
        found = decode_commit(headers, payload)
        swept = read_sweep_headers(headers)
    except RebaserError:
        return False
    return found == commit and found.debt == commit.debt and swept == (commit.applied, commit.debt)


def check(commit: Commit, headers: Headers, payload: bytes) -> bool:
    try:
        sure = surely_reads_back(commit, headers, payload)
    except (AttributeError, TypeError, RebaserError):  # bytes that are no commit are refused, too
        sure = False
    assert not sure or finds(commit, headers, payload), (commit, headers, payload)
    return sure


def damaged(tree: Any) -> Iterator[Any]:
    """Yield `tree` with each part replaced by each unusual value, removed, or extended."""
    inside = list(tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ())
    yield from ODD
    if isinstance(tree, dict):
        added = ADDED
        yield from ({**tree, name: odd} for name in added for odd in (None, 1, [], {}) if name not in tree)  # type: ignore[var-annotated]
    if isinstance(tree, list):
        yield from ([*tree, one] for one in ODD)
    for key, child in inside:
        less = copy.copy(tree)
        del less[key]
        yield less
        for other in damaged(child):
            changed = copy.copy(tree)
            changed[key] = other
            yield changed


@pytest.mark.parametrize(
    "commit",
    [
        usual(),
        usual(1, None),
        replace(usual(), requests=(), applied=None),
        usual(0),
        historical(),
        historical(()),
        replace(historical(), authors=()),
        replace(usual(), checkpoint=CHECKPOINT),
        replace(historical(), checkpoint=CHECKPOINT),
    ],
)
def test_a_payload_that_says_something_else(commit: Commit) -> None:
    headers, payload = encode_commit(commit)
    tree = loads(CBOR, payload)
    assert check(commit, headers, dumps(CBOR, tree))
    refused = [not check(commit, headers, dumps(CBOR, other)) for other in damaged(tree)]
    assert sum(refused) > 0.97 * len(refused)  # 1 equals 1.0 here


def test_a_commit_that_nobody_can_read() -> None:
    """A commit with an invalid field is refused with its own payload, and with the payload of another commit."""
    for commit in (usual(), historical(), replace(historical(), checkpoint=CHECKPOINT)):
        check_damaged(commit)


def check_damaged(commit: Commit) -> None:
    wrong = [replace(commit, **{one.name: odd}) for one in fields(Commit) for odd in ODD if one.name not in LISTS]
    decision, first = commit.requests[0], commit.delta[0]
    wrong += [
        replace(commit, requests=(replace(decision, **{one.name: odd}), *commit.requests[1:]))
        for one in fields(Decision) for odd in ODD if odd or type(odd) is type(getattr(decision, one.name))
    ]  # fmt: skip
    wrong += [
        replace(commit, delta=(replace(first, **{name: odd}), *commit.delta[1:]))
        for name in ("id", "value")
        for odd in ODD
    ]
    wrong += [replace(commit, delta=delta) for delta in ((Remove("a"),), (Set("x" * 70_000, 1),), [Set("a", 1)])]
    stood: list[Any] = [(Remove("a"),), (Set("x" * 70_000, 1),), [Set("a", 1)], ()]
    wrong += [replace(commit, before=before) for before in stood]
    authors: list[Any] = [(Authorship(),), [Authorship(), Authorship()]]
    authors += [(Authorship(odd), Authorship("", odd)) for odd in ODD]
    wrong += [replace(commit, authors=some) for some in authors]
    wrong.append(replace(commit, recompute=(Recompute(),)))
    wrong.append(
        replace(commit, delta=tuple([Computed(one.id, one.value) for one in commit.delta if type(one) is Set]))
    )
    at = CHECKPOINT.address
    named = [CheckpointRef(*parts) for odd in ODD for parts in ((odd, 5, 6), (at, odd, 6), (at, 5, odd))]
    wrong += [replace(commit, checkpoint=one) for one in (*named, replace(CHECKPOINT, sequence=4), None)]
    wrong += [replace(commit, applied=place) for odd in ODD for place in (Applied(odd, 9), Applied("s", odd))]
    written = 0
    right = encode_commit(commit)
    for one in wrong:
        check(one, *right)
        try:
            headers, payload = encode_commit(one)
        except (AttributeError, TypeError, RebaserError):  # not a commit at all
            continue
        written += 1
        check(one, headers, payload)
        check(one, right[0], payload)
        check(one, headers, right[1])
        check(commit, headers, payload)
    assert written > 300


TEXTS = [
    "", "0", "1", "2", "01", "+1", "-1", " 1", "1_0", "1.0", "\u0661", "True", "None", "9" * 19, "9" * 20, "s", ":",
    "s:", ":9", "s:9", "s:8", "s:09", "S:9", "s:9 ", "s::9", "t:s:9", "Commit", "commit", "EnqueueUpdatesRequest",
    "application/cbor", "application/json", "APPLICATION/CBOR; x=y",
]  # fmt: skip
PLACES = [None, Applied("", 9), Applied(":", 9), Applied("t:s", 9), Applied("s", 0), Applied("s", 2**63 - 1)]


def test_headers_that_say_something_else() -> None:
    for commit in (usual(), *(replace(usual(), applied=applied, debt=2**63 - 1) for applied in PLACES)):
        headers, payload = encode_commit(commit)
        assert check(commit, headers, payload)
        assert check(commit, headers | {"X-Other": "1"}, payload)
        for name in (CONTENT_TYPE, MESSAGE_TYPE, MESSAGE_VERSION, APPLIED, DEBT):
            others = [headers | {name: text} for text in TEXTS if text != headers[name]]
            others.append({key: text for key, text in headers.items() if key != name})
            assert not any(check(commit, other, payload) for other in others)


@pytest.mark.parametrize("end", [-1, None])
def test_all_of_the_payload_is_read(end: int | None) -> None:
    headers, payload = encode_commit(usual())
    with pytest.raises(RebaserError):
        check_commit(usual(), headers, payload[:end] if end else payload + b"\0")
