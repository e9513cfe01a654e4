"""Tests which updates are valid, and what their errors say."""

from typing import Any

import pytest

from rebaser_core.errors import UnprocessableError
from rebaser_core.limits import Limits
from rebaser_core.updates import (
    PATTERN_PREFIX,
    Derive,
    Match,
    Remove,
    Set,
    Unset,
    any_match,
    check_updates,
    parse_update,
    parse_updates,
)

NET = {"op": "derive", "id": "net", "function": "cel", "inputs": {"p": "price"}, "params": {"expr": "p"}}


def refusal(raw: object, limits: Limits | None = None) -> tuple[str, str]:
    with pytest.raises(UnprocessableError) as caught:
        parse_update(raw, *(() if limits is None else (limits,)))
    return caught.value.code, caught.value.message


def test_each_op_is_parsed_from_the_documented_form() -> None:
    assert parse_update({"op": "set", "id": "cart/1/price", "value": 9.5}) == Set("cart/1/price", 9.5)
    assert parse_update({"op": "set", "id": "a", "value": None}) == Set("a", None)
    assert parse_update({"op": "unset", "id": "a"}) == Unset("a")
    assert parse_update({"op": "remove", "id": "a"}) == Remove("a")
    assert parse_update(NET) == Derive("net", "cel", {"p": "price"}, {"expr": "p"})
    listed = {"op": "derive", "id": "t", "function": "sum", "inputs": {"values": ["a", "b", "a"]}}
    assert parse_update(listed) == Derive("t", "sum", {"values": ("a", "b", "a")}, {})


def test_an_input_may_be_a_pattern_alone_or_among_ids() -> None:
    given = {"x": {"match": "cart/*/price"}, "some": ["a", {"match": "**"}, "b"], "one": [{"match": "b"}]}
    update = parse_update({"op": "derive", "id": "t", "function": "sum", "inputs": given})
    read = {"x": Match("cart/*/price"), "some": ("a", Match("**"), "b"), "one": Match("b")}
    assert update == Derive("t", "sum", read, {})  # type: ignore[arg-type]
    assert isinstance(update, Derive)
    assert list(update.input_ids()) == [
        PATTERN_PREFIX + "cart/*/price",
        "a",
        PATTERN_PREFIX + "**",
        "b",
        PATTERN_PREFIX + "b",
    ]
    assert parse_update(update.to_wire()) == update
    assert update.has_match
    assert any_match([Set("a", 1), update])
    assert not any_match([Set("a", 1), Derive("t", "sum", {"x": "a", "y": ("b", "c")})])


def test_where_patterns_are_not_known_yet_one_is_no_input() -> None:
    for given in ({"match": "a"}, ["a", {"match": "a"}]):
        assert parse_update(NET | {"inputs": {"p": given}})
        code, message = refusal(NET | {"inputs": {"p": given}}, Limits().without_matches)
        assert code == "invalid_update"
        assert "match" not in message


def test_input_ids_come_in_declared_order_with_repeats() -> None:
    update = Derive("t", "f", {"x": "b", "all": ("a", "b"), "y": "c"})
    assert list(update.input_ids()) == ["b", "a", "b", "c"]


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (None, "map"),
        ([], "map"),
        ("set", "map"),
        ({}, "op"),
        ({"op": None, "id": "a"}, "op"),
        ({"op": ["set"], "id": "a"}, "op"),
        ({"op": "SET", "id": "a", "value": 1}, "'SET'"),
        ({"op": "set", "value": 1}, "id is missing"),
        ({"op": "set", "id": "a"}, "'a' has no value"),
        ({"op": "set", "id": "a", "value": 1, "valeu": 2}, "'valeu'"),
        ({"op": "set", "id": "a", "value": 1, "function": "sum"}, "'function'"),
        ({"op": "unset", "id": "a", "value": 1}, "'value'"),
        ({"op": "set", "id": "", "value": 1}, "id is missing"),
        ({"op": "set", "id": 7, "value": 1}, "id must be text"),
        ({"op": "set", "id": "a\nb", "value": 1}, "not printable"),
        ({"op": "set", "id": "a\x00", "value": 1}, "not printable"),
        ({"op": "set", "id": "\u202eabc", "value": 1}, "not printable"),
        ({"op": "set", "id": "\ud800", "value": 1}, "not printable"),
        ({"op": "set", "id": "x" * 513, "value": 1}, "longer than 512"),
        (NET | {"function": None}, "function is missing"),
        (NET | {"function": ""}, "function is missing"),
        (NET | {"inputs": ["a"]}, "inputs of 'net'"),
        (NET | {"inputs": None}, "inputs of 'net'"),
        (NET | {"inputs": {"p": 1}}, "input 'p'"),
        (NET | {"inputs": {"p": {"id": "a"}}}, "input 'p'"),
        (NET | {"inputs": {"p": ["a", None]}}, "input id is missing"),
        (NET | {"inputs": {"p": {"match": "a", "not": "b"}}}, "input 'p'"),
        (NET | {"inputs": {"p": ["a", {"id": "b"}]}}, "input id must be text"),
        (NET | {"inputs": {"p": {"match": 7}}}, "match must be text"),
        (NET | {"inputs": {"p": {"match": ""}}}, "match is missing"),
        (NET | {"inputs": {"p": [{"match": "*" * 513}]}}, "longer than 512"),
        (NET | {"inputs": {"p": {"match": "a\n*"}}}, "not printable"),
        (NET | {"inputs": {"": "a"}}, "input name is missing"),
        (NET | {"inputs": {1: "a"}}, "input name must be text"),
        (NET | {"params": None}, "params of 'net'"),
        (NET | {"params": []}, "params of 'net'"),
    ],
    ids=repr,
)
def test_a_wrong_update_is_refused_with_the_reason(raw: object, says: str) -> None:
    code, message = refusal(raw)
    assert code == "invalid_update"
    assert says in message


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (2**63, "invalid_value"),
        (float("nan"), "invalid_value"),
        (float("-inf"), "invalid_value"),
        (b"bytes", "invalid_value"),
        ({1, 2}, "invalid_value"),
        ({1: 2}, "invalid_value"),
        ({"a": {"b": {1, 2}}}, "invalid_value"),
        (["\ud800"], "invalid_value"),
        ({"\udc00": 1}, "invalid_value"),
        ("x" * 300_000, "too_large"),
        (["x" * 1000] * 300, "too_large"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_a_value_that_cannot_be_stored_is_refused(value: Any, code: str) -> None:
    assert refusal({"op": "set", "id": "a", "value": value})[0] == code
    assert refusal(NET | {"params": {"p": value}})[0] == code


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert refusal({"op": "set", "id": "a", "value": loop})[0] == "too_deep"


def test_limits_are_those_of_the_caller() -> None:
    assert refusal({"op": "unset", "id": "abc"}, Limits(max_id_length=2))[0] == "invalid_update"
    assert refusal(NET | {"inputs": {"x": ["a", "b"], "y": "c"}}, Limits(max_inputs=2))[0] == "too_large"
    assert refusal({"op": "set", "id": "a", "value": [[1]]}, Limits(max_depth=1))[0] == "too_deep"
    assert refusal({"op": "set", "id": "a", "value": "abc"}, Limits(max_value_bytes=4))[0] == "too_large"
    with pytest.raises(UnprocessableError) as caught:
        parse_updates([{"op": "unset", "id": "a"}] * 3, Limits(max_updates=2))
    assert caught.value.code == "too_large"


def test_a_long_word_of_a_sender_is_cut_in_the_message() -> None:
    for raw in ({"op": "x" * 10_000}, {"op": "unset", "id": "x" * 10_000}, {"op": "unset", "id": "a", "x" * 10_000: 1}):
        assert len(refusal(raw)[1]) < 200


@pytest.mark.parametrize("raw", [None, {}, "updates", 7, {"updates": []}], ids=repr)
def test_updates_are_a_list(raw: object) -> None:
    with pytest.raises(UnprocessableError) as caught:
        parse_updates(raw)
    assert caught.value.code == "invalid_update"


def test_updates_made_in_a_program_are_checked_as_those_from_outside() -> None:
    listed = Derive("b", "sum", {"values": ["a"]})
    assert check_updates([Set("a", 1), listed]) == (Set("a", 1), Derive("b", "sum", {"values": ("a",)}))
    with pytest.raises(UnprocessableError, match="update 1"):
        check_updates([Set("a", 1), Set("", 2)])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([{"op": "set", "id": "a", "value": 1}], "update 0 is a dict; make it with Set, Derive, Unset or Remove"),
        ([Set("a", 1), ("a", 1)], "update 1 is a tuple; make it with Set, Derive, Unset or Remove"),
        (Set("a", 1), "updates must be an iterable of Set, Derive, Unset and Remove, not a Set"),
        ({"a": 1}, "updates must be an iterable of Set, Derive, Unset and Remove, not a dict"),
        ("a", "updates must be an iterable of Set, Derive, Unset and Remove, not a str"),
    ],
    ids=repr,
)
def test_what_is_no_update_is_named(given: Any, says: str) -> None:
    with pytest.raises(UnprocessableError) as refused:
        check_updates(given)
    assert refused.value.message == says
