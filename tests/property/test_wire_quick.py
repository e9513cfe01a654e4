"""The fast reader of a body gives the same as the model of the body, or leaves the body to the model."""

import math
from collections.abc import Iterator
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebaser_core.encoding.envelope import CBOR, CONTENT_TYPE, MESSAGE_TYPE, MESSAGE_VERSION, MessageType, validate
from rebaser_core.errors import RebaserError, UnprocessableError
from rebaser_core.ids import RequestId
from rebaser_core.limits import DEFAULT_LIMITS
from rebaser_core.messages import REGISTRY, EnqueueUpdatesResponse, Success
from rebaser_core.messages.commit import COMMIT
from rebaser_core.messages.request import REQUEST
from rebaser_core.messages.response import RESPONSE, read_plain_success

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


names = st.sampled_from(["", "r", "a" * 23, "a" * 24, "a" * 64, "a" * 127, "a" * 128, "é", "\ud800"])
numbers = st.integers(0, 2**64 - 1) | st.sampled_from([0, 23, 24, 2**8, 2**16, 2**32, 2**63 - 1, 2**63])


@given(
    st.tuples(names, names, names),
    st.one_of(names, st.none()),
    st.dictionaries(st.sampled_from(["performed", "commit", "position"]), numbers | odd),
    st.none() | st.tuples(st.integers(0, 200), st.binary(max_size=2)),
)
def test_plain_successes(
    asked: tuple[str, str, str], other: str | None, success: dict[str, Any], damage: tuple[int, bytes] | None
) -> None:
    """The payload may be that of another request, or damaged from some byte on, or not be plain."""
    wire = dict(zip(("id", "workspaceId", "changeSetId"), asked, strict=True), status={"success": success})
    wire["workspaceId"] = asked[1] if other is None else other
    try:
        payload = cbor2.dumps({"v1": wire})
    except UnicodeEncodeError:
        return
    if damage is not None:
        at, by = damage
        payload = payload[:-at] + by + payload[len(payload) - at + 1 :]
    read_back = read_plain_success(payload, *asked)
    if read_back is not None:
        headers = {CONTENT_TYPE: CBOR, MESSAGE_TYPE: RESPONSE.name, MESSAGE_VERSION: "1"}
        assert REGISTRY.decode(headers, payload) == EnqueueUpdatesResponse(RequestId(asked[0]), *asked[1:], read_back)


@pytest.mark.parametrize("number", [0, 23, 24, 255, 256, 2**16 - 1, 2**16, 2**32 - 1, 2**32, 2**63 - 1])
def test_plain_successes_are_read_without_decoding_them(number: int) -> None:
    response = EnqueueUpdatesResponse(RequestId("r"), "w" * 64, "c", Success(number, number))
    _, payload = REGISTRY.encode(response)
    assert read_plain_success(payload, "r", "w" * 64, "c") == response.status
    for other in (("s", "w" * 64, "c"), ("r", "w", "c"), ("r", "w" * 64, ""), ("r" * 128, "w" * 64, "c")):
        assert read_plain_success(payload, *other) is None


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


FOREIGN = [b"x", cbor2.undefined, cbor2.CBORSimpleValue(99), math.nan, -math.inf, 2**63, -(2**63) - 1, {1: 2}, [b""]]
ADDRESS = f"sha256:{0:064}"
UPDATES = [
    {"op": "set", "id": "a", "value": [1, {"k": None}]},
    {
        "op": "derive",
        "id": "b",
        "function": "f",
        "inputs": {"x": "a", "y": ["a", {"match": "v/*"}]},
        "params": {"n": 1},
    },
]
USUAL_COMMIT = {
    "id": "r",
    "previous": 1,
    "kind": "rebase",
    "atMs": 1,
    "owner": "o",
    "covers": 1,
    "debt": 1,
    "applied": {"stream": "s", "sequence": 1},
    "requests": [[1, "r1", "success", 1], [2, "r2", "dead", 0, "c", "m", 1, 3, 0, 0, [ADDRESS, 5]]],
    "delta": {"updates": UPDATES},
    "before": {"updates": UPDATES},
    "forgetBeforeMs": 1,
    "authors": [["a", "m"]] * 2,
    "checkpoint": {"address": ADDRESS, "sequence": 1, "size": 1},
}
BLOB = {"address": ADDRESS, "size": 9}
OF_ALL = {name: USUAL_COMMIT[name] for name in ("id", "previous", "atMs", "owner")}
COMPUTED = [{"id": "a", "value": 1}, {"id": "b", "error": {"code": "c", "message": "m", "origin": "o"}}]
KEY = {"id": "r", "workspaceId": "w", "changeSetId": "c"}
USUAL: list[tuple[MessageType[Any], dict[str, Any]]] = [
    (COMMIT, USUAL_COMMIT),
    (COMMIT, USUAL_COMMIT | {"delta": BLOB, "before": BLOB}),
    (COMMIT, OF_ALL | {"kind": "dvu", "delta": {"computed": COMPUTED}}),
    (REQUEST, KEY | {"updates": UPDATES}),
    (RESPONSE, KEY | {"status": {"success": {"performed": 1, "commit": 2}}}),
]  # fmt: skip


def replaced(tree: Any, foreign: object) -> Iterator[Any]:
    """Yield copies of `tree` in each of which one part, or the key of one part, is replaced by `foreign`."""
    yield foreign
    if isinstance(tree, dict):
        for name, child in tree.items():
            yield from (tree | {name: other} for other in replaced(child, foreign))
            if not isinstance(foreign, dict | list):
                yield {foreign if key == name else key: value for key, value in tree.items()}
    elif isinstance(tree, list):
        for at, child in enumerate(tree):
            yield from ([*tree[:at], other, *tree[at + 1 :]] for other in replaced(child, foreign))


@pytest.mark.parametrize(("kind", "body"), USUAL)
def test_what_json_cannot_represent_is_refused_wherever_it_stands(kind: MessageType[Any], body: dict[str, Any]) -> None:
    version = kind.current if kind is not REQUEST else 3
    assert kind.quick is not None
    assert kind.quick(body, DEFAULT_LIMITS, version) is not None
    headers = {CONTENT_TYPE: CBOR, MESSAGE_TYPE: kind.name, MESSAGE_VERSION: str(version)}
    for foreign in FOREIGN:
        for tree in replaced({f"v{version}": body}, foreign):
            with pytest.raises(UnprocessableError) as refused:
                REGISTRY.decode(headers, cbor2.dumps(tree))
            assert refused.value.code == "malformed"
