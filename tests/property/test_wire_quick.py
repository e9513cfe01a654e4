"""The fast reader of a body gives the same as the model of the body, or leaves the body to the model."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebaser_core.encoding.envelope import MessageType, validate
from rebaser_core.errors import RebaserError
from rebaser_core.limits import DEFAULT_LIMITS
from rebaser_core.messages.commit import COMMIT
from rebaser_core.messages.request import REQUEST
from rebaser_core.messages.response import RESPONSE

texts = st.sampled_from(["a", "x-1", "", "no good", "b" * 65])
odd = st.one_of(st.none(), st.booleans(), st.integers(-2, 3), texts, st.just([]), st.just({}))
updates = st.one_of(
    odd, st.lists(st.fixed_dictionaries({"op": st.sampled_from(["set", "unset", "eval"]), "id": texts, "value": odd}))
)
counts = st.one_of(st.integers(-1, 3), odd)
statuses = st.one_of(
    odd,
    st.fixed_dictionaries({"success": st.one_of(odd, st.fixed_dictionaries({"performed": counts, "commit": counts}))}),
    st.fixed_dictionaries({"success": st.just({"performed": 1, "commit": 1}), "error": odd}),
)
frame = {"id": st.one_of(texts, odd), "workspaceId": st.one_of(texts, odd), "changeSetId": st.one_of(texts, odd)}


def outcome(read: Any) -> object:
    try:
        return read()
    except RebaserError as error:
        return error.code


def check(kind: MessageType[Any], raw: dict[str, Any]) -> None:
    assert kind.quick is not None
    for version in range(1, kind.current + 1):
        quick = outcome(lambda: kind.quick(raw, DEFAULT_LIMITS, version))  # noqa: B023
        if quick is not None:
            assert quick == outcome(lambda: read(kind, raw, version))  # noqa: B023


def read(kind: MessageType[Any], raw: dict[str, Any], version: int) -> Any:
    body = validate(kind.bodies[version - 1], raw)
    for upgrade in kind.upgrades[version - 1 :]:
        body = upgrade(body)
    return kind.read(body, DEFAULT_LIMITS, version)


@given(
    st.fixed_dictionaries(
        {**frame, "updates": updates},
        optional={"fromChangeSetId": odd, "updatesAddress": odd, "author": odd, "expect": odd, "revert": odd},
    )
)
def test_requests(raw: dict[str, Any]) -> None:
    check(REQUEST, raw)


@given(st.fixed_dictionaries({**frame, "status": statuses}, optional={"more": odd}))
def test_responses(raw: dict[str, Any]) -> None:
    check(RESPONSE, raw)


rows = st.lists(st.lists(st.one_of(counts, st.sampled_from(["r1", "success", "dead", "lost", ""])), max_size=9))
commits = {
    "id": st.one_of(texts, odd),
    "previous": counts,
    "kind": st.one_of(st.sampled_from(["rebase", "dvu", "attempt", "checkpoint", "later"]), odd),
    "atMs": counts,
    "owner": st.one_of(texts, odd),
}
more = {
    "applied": st.one_of(odd, st.fixed_dictionaries({"stream": st.one_of(texts, odd), "sequence": counts})),
    "covers": counts,
    "requests": st.one_of(odd, rows, st.just([[1, "r1", "success", 1], [2, "r2", "dead", 0, "poison", "why", 0, 3]])),
    "delta": st.one_of(
        odd,
        st.fixed_dictionaries({"updates": updates}),
        st.fixed_dictionaries({"computed": updates}),
        st.fixed_dictionaries({"address": texts, "size": counts}),
    ),
    "forgetBeforeMs": counts,
    "debt": counts,
    "checkpoint": odd,
    "nobody": odd,
    "before": st.one_of(
        odd, st.fixed_dictionaries({"updates": updates}), st.fixed_dictionaries({"address": texts, "size": counts})
    ),
    "authors": st.one_of(odd, st.lists(st.lists(texts, max_size=3), max_size=3)),
    "reverts": odd,
}


@given(st.fixed_dictionaries(commits, optional=more))
def test_commits(raw: dict[str, Any]) -> None:
    check(COMMIT, raw)


@pytest.mark.parametrize(
    ("kind", "version"), [(COMMIT, 1), (COMMIT, 2), (COMMIT, 3), (REQUEST, 2), (REQUEST, 3), (RESPONSE, 1)]
)
def test_the_usual_shape_is_read_the_quick_way(kind: MessageType[Any], version: int) -> None:
    bodies = {
        "Commit": {"previous": 0, "kind": "rebase", "atMs": 1, "owner": "o"},
        "EnqueueUpdatesRequest": {"updates": [{"op": "set", "id": "a", "value": 1}]},
        "EnqueueUpdatesResponse": {"status": {"success": {"performed": 1, "commit": 2}}},
    }
    assert kind.quick is not None
    key = {} if kind is COMMIT else {"workspaceId": "w", "changeSetId": "c"}
    raw = {"id": "r", **key, **bodies[kind.name]}  # type: ignore[dict-item]
    assert kind.quick(raw, DEFAULT_LIMITS, version) is not None
