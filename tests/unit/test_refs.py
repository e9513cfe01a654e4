"""Typed references: what is set and what is read has the type of the reference, or raises an error."""

from datetime import date
from decimal import Decimal
from typing import Any, cast

import pytest
from pydantic import BaseModel, ConfigDict, Field

from rebaser_client import Derive, Fault, Match, Ref, Set, State, Template, UnprocessableError, Value, ValueNotReady
from rebaser_client.operations.reads import ReadOperations
from rebaser_core.updates import Inputs, InputsLike, check_updates

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


def test_updates_take_references() -> None:
    price, total = Ref("price", float), Ref("total", list[float])
    assert Set(price, 9) == Set("price", 9.0)
    with pytest.raises(UnprocessableError, match="'price' must be of the type float, not str"):
        Set(price, "9.5")  # type: ignore[misc]
    inputs: InputsLike = {"a": price, "b": [price, "id", Match("x/*")]}
    made = Derive(total, "sum", inputs, {"p": 1})
    assert made == Derive("total", "sum", {"a": "price", "b": ["price", "id", Match("x/*")]}, {"p": 1})
    assert Derive(total, "count") == Derive("total", "count")
    given = [
        Derive("t", "sum", inputs, {"p": 1}),
        Derive("t", "sum", {"a": (price, "id"), "b": [price], "c": (price, Match("x/*"))}),
    ]
    ids = [{"a": "price", "b": ("price", "id", Match("x/*"))}]
    ids.append({"a": ("price", "id"), "b": ("price",), "c": ("price", Match("x/*"))})
    checked = check_updates(given)
    assert [one.inputs for one in checked if isinstance(one, Derive)] == ids
    with pytest.raises(UnprocessableError, match="id must be text, not Template"):
        check_updates([Set(Template("a/{b}", int), 1)])  # type: ignore[call-overload]


class Line(BaseModel):
    product: str = Field(alias="of")
    price: Decimal
    since: date | None = None


class Cart(BaseModel):
    lines: list[Line]


def test_a_model_is_stored_as_json_and_validated_when_it_is_read() -> None:
    ref, cart = Ref("cart", Cart), Cart(lines=[Line(of="tea", price=Decimal("9.50"), since=date(2026, 1, 2))])
    made = ref.set(cart)
    assert made == Set("cart", {"lines": [{"of": "tea", "price": "9.50", "since": "2026-01-02"}]})
    assert check_updates([made]) == (made,)
    assert ref.of(Value(made.value, State.OK)) == cart
    with pytest.raises(UnprocessableError, match=r"'cart'\['lines'\]\[0\]\['price'\] is invalid: ") as raised:
        ref.of(Value({"lines": [{"of": "tea", "price": "free"}]}, State.OK))
    assert raised.value.code == "wrong_type"
    with pytest.raises(UnprocessableError, match="'cart' is invalid: "):
        ref.of(Value(None, State.OK))
    with pytest.raises(UnprocessableError, match="'cart' must be of the type Cart, not dict"):
        ref.set({"lines": []})  # type: ignore[arg-type]


def test_a_strict_model_is_validated_as_the_json_that_is_stored() -> None:
    class Strict(Line):
        model_config = ConfigDict(strict=True)

    ref, line = Ref("line", Strict), Strict(of="tea", price=Decimal("9.50"), since=date(2026, 1, 2))
    assert ref.of(Value(ref.set(line).value, State.OK)) == line
    with pytest.raises(UnprocessableError, match=r"'line'\['of'\] is invalid: "):
        ref.of(Value({"of": 1, "price": "9.50"}, State.OK))


def test_a_name_of_a_template_may_be_self() -> None:
    owner = Template("owner/{self}/{other}", str)
    assert owner.ref(self="me", other="you").id == "owner/me/you"
    assert owner.match(self="me") == Match("owner/me/*")


def test_a_template_makes_references_and_patterns_and_reads_ids() -> None:
    price = Template("cart/{cart}/line-{line}", float)
    assert price.ref(cart=1, line="a") == Ref("cart/1/line-a", float)
    assert price.match() == Match("cart/*/line-*")
    assert price.match(cart=1) == Match("cart/1/line-*")
    assert price.names("cart/1/line-a") == {"cart": "1", "line": "a"}
    for other in ("cart/1/line-", "cart/1/2/line-a", "cart/1/line-a/b", "xcart/1/line-a"):
        assert price.names(other) is None
    literal = Template("a.{{b}}/{c}", int)
    assert literal.ref(c=1).id == "a.{b}/1"
    assert literal.names("a.{b}/1") == {"c": "1"}
    assert literal.names("ax{b}/1") is None


@pytest.mark.parametrize("form", ["", "a/b", "a/{}", "a/{0}", "a/{b", "a/{b!r}", "a/{b:>3}", "{b}/{b}", "{b}\n", 1])
def test_an_invalid_template_is_refused(form: Any) -> None:
    with pytest.raises(UnprocessableError):
        Template(form, float)


def test_invalid_names_and_types_of_a_template_are_refused() -> None:
    price = Template("cart/{cart}/{line}", float)
    for names, told in (
        ({"cart": 1}, "also needs line"),
        ({"cart": 1, "line": "x/y"}, "the name line .* without '/'"),
        ({"cart": 1, "line": ""}, "the name line"),
        ({"cart": 1, "line": 1, "price": 1}, "has no name 'price'"),
    ):
        with pytest.raises(UnprocessableError, match=told):
            price.ref(**names)
    with pytest.raises(UnprocessableError, match=r"the character \* itself"):
        price.match(cart="*")
    assert price.ref(cart="*", line="x").id == "cart/*/x"
    with pytest.raises(UnprocessableError, match="must be one of bool"):
        Template("a/{b}", bytes)


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
