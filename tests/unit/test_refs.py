"""Typed references: what is set and what is read has the type of the reference, or raises an error."""

from typing import Any, cast

import pytest

from rebaser_client import Derive, Fault, Match, Ref, Set, State, UnprocessableError, Value, ValueNotReady
from rebaser_client.operations.reads import ReadOperations
from rebaser_core.updates import Inputs

pytestmark = pytest.mark.anyio

VALUES: dict[type, list[Any]] = {
    bool: [True, False],
    int: [0, -(2**63)],
    float: [0.5, -0.0],
    str: ["", "x"],
    list: [[], [1, "a"]],
    dict: [{}, {"a": 1}],
}


@pytest.mark.parametrize("kind", VALUES)
def test_a_value_of_the_type_is_set_and_read(kind: type[Any]) -> None:
    ref = Ref("a", kind)
    for value in VALUES[kind]:
        assert ref.set(value) == Set("a", value)
        assert ref.of(Value(value, State.OK)) is value
    others = [value for other in VALUES if other is not kind for value in VALUES[other]]
    for value in (*others, None):
        if kind is float and type(value) is int:
            continue
        with pytest.raises(UnprocessableError, match=f"'a' must be of the type {kind.__name__}, not ") as raised:
            ref.set(value)
        assert raised.value.code == "wrong_type"
        with pytest.raises(UnprocessableError, match="must be of the type"):
            ref.of(Value(value, State.OK))


def test_an_integer_is_a_float_if_nothing_is_lost() -> None:
    ref = Ref("a", float)
    assert type(ref.set(9).value) is float
    assert type(ref.of(Value(2**53, State.OK))) is float
    with pytest.raises(UnprocessableError, match="must be of the type float, not int"):
        ref.of(Value(2**53 + 1, State.OK))
    with pytest.raises(UnprocessableError, match="must be of the type float, not int"):
        ref.set(10**400)


def test_inputs_may_be_references() -> None:
    price, total = Ref("price", float), Ref("total", list[float])
    made = total.derive("sum", {"a": price, "b": "id", "c": [price, "id", Match("x/*")], "d": Match("y")}, {"p": 1})
    inputs: Inputs = {"a": "price", "b": "id", "c": ["price", "id", Match("x/*")], "d": Match("y")}
    assert made == Derive("total", "sum", inputs, {"p": 1})
    assert total.derive("count") == Derive("total", "count")


def test_only_types_of_json_and_valid_ids() -> None:
    for kind in (object, bytes, type(None), cast("Any", "float"), tuple[int]):
        with pytest.raises(UnprocessableError, match="must be one of bool, int, float, str, list, dict"):
            Ref("a", kind)
    with pytest.raises(UnprocessableError, match="id is missing or empty"):
        Ref("", int)


FAULT = Fault("failed", "why", "b")


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (None, "does not exist"),
        (Value(None, State.UNSET), "is unset"),
        (Value(1, State.STALE), "is not up to date"),
        (Value(None, State.ERROR, FAULT), "is an error: failed: why"),
    ],
)
async def test_a_value_that_is_not_ready_is_told(value: Value | None, told: str) -> None:
    class Reads(ReadOperations):
        async def value(self, workspace: str, change_set: str, id_: str, *, at: Any = None) -> Value | None:
            assert (workspace, change_set, id_, at) == ("ws", "cs", "a", 7)
            return value

    reads = object.__new__(Reads)
    with pytest.raises(ValueNotReady, match=f"the value 'a' {told}") as raised:
        await reads.get("ws", "cs", Ref("a", int), at=7)
    assert raised.value.state is (None if value is None else value.state)
    assert raised.value.error is (None if value is None else value.error)
