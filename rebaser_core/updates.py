"""Defines the four kinds of edits (`Update`) and their wire format, and validates them.

Invariant: every `Update` that `parse_update` or `check_updates` returns can be applied to any state.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, overload

from rebaser_core.errors import UnprocessableError
from rebaser_core.limits import DEFAULT_LIMITS, Limits
from rebaser_core.record import record
from rebaser_core.typed_ids import TypedId, input_ids
from rebaser_core.values import INT64_MAX, INT64_MIN, Json, JsonInput, check_json

# The first character of a pattern in a list of ids and patterns. No id begins with this character, because ids contain
# only printable characters.
PATTERN_PREFIX: Final = "\0"


@dataclass(frozen=True, slots=True)
class Match:
    """An input that stands for all values whose ids match the pattern `glob`, including values that are created later.

    The function receives these values as a list, in the order of their ids. In the pattern, `*` matches zero or more
    characters except `/`, and `**` matches zero or more characters including `/`. No other character is special. Every
    existing value can match, including unset and derived values. A value whose id matches a pattern among its own
    inputs depends on itself.
    """

    glob: str

    def to_wire(self) -> dict[str, str]:
        return {"match": self.glob}

    @property
    def key(self) -> str:
        """The text that represents this pattern in a list of ids and patterns."""
        return PATTERN_PREFIX + self.glob


Input: TypeAlias = str | Match
Inputs: TypeAlias = Mapping[str, Input | Sequence[Input]]
InputLike: TypeAlias = Input | TypedId[Any]
InputsLike: TypeAlias = Mapping[str, InputLike | Sequence[InputLike]]

T = TypeVar("T")


@record
class Set:
    """An edit that sets `id` to `value`. If `id` was a derived value, its definition is removed.

    `id` may be a reference, which checks the type of `value`.
    """

    id: str
    value: Json

    if TYPE_CHECKING:  # the constructor accepts more types than the field has, because `check_updates` converts them

        @overload
        def __init__(self, id: str, value: JsonInput) -> None: ...
        @overload
        def __init__(self, id: TypedId[T], value: T) -> None: ...
        def __init__(self, id: Any, value: Any) -> None: ...  # noqa: A002 - the field's name

    else:

        def __init__(self, id, value):  # noqa: A002 - the field's name
            if id.__class__ is not str and isinstance(id, TypedId):
                id, value = id.id, id.to_json(value)  # noqa: A001 - the field's name
            self.id = id
            self.value = value

    def to_wire(self) -> dict[str, Any]:
        return {"op": "set", "id": self.id, "value": self.value}


@record
class Derive:
    """An edit that defines `id` as the result of calling `function` with the values of `inputs` and the constants
    `params`.

    `inputs` maps the name of each input to the id of a value, to a `Match`, or to a list of ids and matches. References
    stand for their ids.
    """

    id: str
    function: str
    inputs: Inputs
    params: Mapping[str, Json]

    if TYPE_CHECKING:  # the constructor accepts more types than the fields have, because `check_updates` converts them

        def __init__(
            self,
            id: str | TypedId[Any],  # noqa: A002 - the field's name
            function: str,
            inputs: InputsLike | None = ...,
            params: Mapping[str, JsonInput] | None = ...,
        ) -> None: ...

    else:

        def __init__(self, id, function, inputs=None, params=None):  # noqa: A002 - the field's name
            if id.__class__ is not str and isinstance(id, TypedId):
                id = id.id  # noqa: A001 - the field's name
                inputs = {name: input_ids(source) for name, source in (inputs or {}).items()}
            self.id = id
            self.function = function
            self.inputs = {} if inputs is None else inputs
            self.params = {} if params is None else params

    def to_wire(self) -> dict[str, Any]:
        return {
            "op": "derive",
            "id": self.id,
            "function": self.function,
            "inputs": {name: _input_to_wire(source) for name, source in self.inputs.items()},
            "params": dict(self.params),
        }

    def input_ids(self) -> Iterator[str]:
        """Yield the ids of all inputs, in the order of `inputs`, with repetitions. For a match, yield its key."""
        for source in self.inputs.values():
            if isinstance(source, str):
                yield source
            elif isinstance(source, Match):
                yield source.key
            elif Match in map(type, source):
                yield from [item if isinstance(item, str) else item.key for item in source]
            else:
                yield from source  # type: ignore[misc] # `source` contains only ids

    @property
    def has_match(self) -> bool:
        """Whether a pattern (`Match`) is among the inputs."""
        return any(
            not isinstance(source, str) and (isinstance(source, Match) or Match in map(type, source))
            for source in self.inputs.values()
        )


@record
class Unset:
    """An edit that removes the value and the definition of `id`, but not `id` itself. If `id` does not exist, the edit
    creates it without a value."""

    id: str

    def to_wire(self) -> dict[str, Any]:
        return {"op": "unset", "id": self.id}


@record
class Remove:
    """An edit that removes `id` from the graph. Values that depend on `id` are in state `error` until it exists
    again."""

    id: str

    def to_wire(self) -> dict[str, Any]:
        return {"op": "remove", "id": self.id}


Update: TypeAlias = Set | Derive | Unset | Remove
_UPDATES = (Set, Derive, Unset, Remove)


@dataclass(frozen=True, slots=True)
class Recompute:
    """A request to compute derived values again although none of their inputs changed.

    If `function` is None, all derived values are computed again; otherwise, only those that `function` computes. A
    recompute is not an edit, so it has no id.
    """

    function: str | None = None

    def to_wire(self) -> dict[str, Any]:
        return {} if self.function is None else {"function": self.function}


_FIELDS = {
    "set": frozenset({"op", "id", "value"}),
    "derive": frozenset({"op", "id", "function", "inputs", "params"}),
    "unset": frozenset({"op", "id"}),
    "remove": frozenset({"op", "id"}),
}


def functions_of(recomputes: Iterable[Recompute]) -> frozenset[str] | None:
    """Return the names of the functions whose values `recomputes` ask to compute again, or None for all functions."""
    functions = {recompute.function for recompute in recomputes}
    return None if None in functions else frozenset(functions - {None})  # type: ignore[arg-type] # None is removed


def _input_to_wire(source: Input | Sequence[Input]) -> object:
    if isinstance(source, str):
        return source
    if isinstance(source, (Match, TypedId)):
        return source.to_wire()
    if Match in map(type, source):
        return [item if isinstance(item, str) else item.to_wire() for item in source]
    return list(source)


def any_match(updates: Iterable[object]) -> bool:
    """Return whether any of `updates` has a pattern among its inputs."""
    return any(type(update) is Derive and update.has_match for update in updates)


def parse_update(raw: object, limits: Limits = DEFAULT_LIMITS) -> Update:
    """Return the update with the wire form `raw`. Raise `UnprocessableError` (usually with code `invalid_update`) if
    `raw` is not a valid update."""
    if type(raw) is not dict:
        raise _invalid(f"an update must be a map, not {type(raw).__name__}")
    op = raw.get("op")
    fields = _FIELDS.get(op) if type(op) is str else None
    if fields is None:
        raise _invalid(f"unknown op {str(op)[:40]!r}: use set, derive, unset or remove")
    if not fields.issuperset(raw):
        extra = next(str(key) for key in raw if key not in fields)
        raise _invalid(f"an update with the op {op} has no field {extra[:40]!r}: remove this field")
    id_ = check_id(raw.get("id"), limits)
    if op == "set":
        if "value" not in raw:
            raise _invalid(f"set {id_!r} has no value: add the field 'value'")
        return Set(id_, check_json(raw["value"], limits))
    if op == "derive":
        return _parse_derive(id_, raw, limits)
    return Unset(id_) if op == "unset" else Remove(id_)


def parse_updates(raw: object, limits: Limits = DEFAULT_LIMITS) -> tuple[Update, ...]:
    """Return the updates with the wire forms in the list `raw`. If one is invalid, raise `UnprocessableError` with its
    position, counted from 0, in the message."""
    if not isinstance(raw, (list, tuple)):
        raise _invalid(f"updates must be a list, not {type(raw).__name__}")
    if len(raw) > limits.max_updates:
        raise UnprocessableError(
            f"there are {len(raw)} updates; a request may have at most {limits.max_updates}", code="too_large"
        )
    out: list[Update] = []
    for item in raw:
        # Most updates set a number. The other conditions are those of `parse_update`.
        if type(item) is dict and len(item) == 3 and item.get("op") == "set" and type(item.get("value")) is int:
            id_, value = item.get("id", ""), item["value"]
            known = type(id_) is str and 0 < len(id_) <= limits.max_id_length and id_.isprintable()
            if known and INT64_MIN <= value <= INT64_MAX:
                out.append(Set(id_, value))
                continue
        try:
            out.append(parse_update(item, limits))
        except UnprocessableError as error:
            raise UnprocessableError(f"update {len(out)}{of_id(item, error.message)}", code=error.code) from None
    return tuple(out)


def of_id(raw: object, message: str) -> str:
    """Return the end of an error message about the wire form `raw`: its id, if `message` lacks it, and `message`."""
    id_ = raw.get("id") if type(raw) is dict else None
    name = repr(id_[:40]) if type(id_) is str and id_ else ""
    return f" of {name}: {message}" if name and name not in message else f": {message}"


def check_updates(updates: Iterable[Update], limits: Limits = DEFAULT_LIMITS) -> tuple[Update, ...]:
    """Check the updates of a program by the same rules as the server, and return them with their values converted to
    JSON.

    If an update is invalid, raise `UnprocessableError` with its position, counted from 0, in the message.
    """
    if isinstance(updates, (list, tuple)):
        if (quick := _check_sets(updates, limits)) is not None:
            return quick
    elif not isinstance(updates, Iterable) or isinstance(updates, (str, bytes, Mapping)):
        raise _invalid(f"updates must be an iterable of Set, Derive, Unset and Remove, not {_named(updates)}")
    raw = []
    for position, update in enumerate(updates):
        if not isinstance(update, _UPDATES):
            raise _invalid(f"update {position} is {_named(update)}; make it with Set, Derive, Unset or Remove")
        raw.append(update.to_wire())
    return parse_updates(raw, limits)


def _check_sets(updates: Sequence[object], limits: Limits) -> tuple[Update, ...] | None:
    """Return what `check_updates` would return, or None unless all of `updates` are valid edits of the type `Set`."""
    if len(updates) > limits.max_updates:
        return None
    limit = limits.max_id_length
    checked: list[Update] = []
    for one in updates:
        if type(one) is not Set or type(id_ := one.id) is not str or not (0 < len(id_) <= limit and id_.isprintable()):
            return None
        value = one.value
        if type(value) is not int or not INT64_MIN <= value <= INT64_MAX:  # most updates set a number
            try:
                value = check_json(value, limits)
            except UnprocessableError:
                return None  # the error needs the position of the update
        checked.append(one if value is one.value else Set(id_, value))
    return tuple(checked)


def _named(value: object) -> str:
    """Return the name of the type of `value` for an error message, with an article if the type is a common one."""
    kind = type(value).__name__
    return f"a {kind}" if kind in {"Set", "Derive", "Unset", "Remove", "dict", "list", "tuple", "str"} else kind


def parse_recompute(raw: object, limits: Limits = DEFAULT_LIMITS) -> Recompute:
    """Return the `Recompute` with the wire form `raw`. Raise `UnprocessableError` (code `invalid_update`) if `raw` is
    not valid."""
    if type(raw) is not dict or not raw.keys() <= {"function"}:
        raise _invalid("recompute must be a map with the single key 'function', or an empty map")
    return Recompute(check_id(raw["function"], limits, "function") if raw else None)


def check_id(id_: object, limits: Limits = DEFAULT_LIMITS, what: str = "id") -> str:
    """Return `id_` unchanged. Raise `UnprocessableError` if it is not text of 1 to `max_id_length` printable
    characters. `what` is the term for the text in the error message, for example "function"."""
    if type(id_) is str and 0 < len(id_) <= limits.max_id_length and id_.isprintable():
        return id_
    if type(id_) is not str or not id_:
        raise _invalid(
            f"{what} must be text, not {type(id_).__name__}"
            if id_ is not None and type(id_) is not str
            else f"{what} is missing or empty"
        )
    if len(id_) > limits.max_id_length:
        raise _invalid(f"{what} {id_[:40]!r}... is longer than {limits.max_id_length} characters")
    if not id_.isprintable():
        raise _invalid(f"{what} {id_[:40]!r} has a character that is not printable: remove it")
    return id_


def _parse_derive(id_: str, raw: dict[Any, Any], limits: Limits) -> Derive:
    function = check_id(raw.get("function"), limits, "function")
    raw_inputs, raw_params = raw.get("inputs", {}), raw.get("params", {})
    if type(raw_inputs) is not dict:
        raise _invalid(f"the inputs of {id_!r} must be a map from names to ids, not {type(raw_inputs).__name__}")
    inputs: dict[str, Input | tuple[Input, ...]] = {}
    count = matches = 0
    for name, source in raw_inputs.items():
        check_id(name, limits, "input name")
        if type(source) is str:
            inputs[name] = check_id(source, limits, "input id")
            count += 1
        elif isinstance(source, (list, tuple)):
            items = (
                tuple(source) if _are_ids(source, limits) else tuple([_parse_input(item, limits) for item in source])
            )
            if Match in map(type, items):
                matches += list(map(type, items)).count(Match)
            # A match already stands for a list of values, so a list that contains nothing but one match is replaced by
            # it.
            inputs[name] = items[0] if len(items) == 1 and type(items[0]) is Match else items
            count += len(items)
        elif type(source) is dict and limits.max_matches and source.keys() == {"match"}:
            inputs[name] = _parse_input(source, limits)
            count += 1
            matches += 1
        else:
            kinds = "an id, a pattern, or a list of them" if limits.max_matches else "an id or a list of ids"
            raise _invalid(f"input {name!r} of {id_!r} must be {kinds}")
        if matches > limits.max_matches:
            raise UnprocessableError(
                f"{id_!r} has more than {limits.max_matches} patterns as inputs: divide it into several values",
                code="too_large",
            )
        if count > limits.max_inputs:
            raise UnprocessableError(
                f"{id_!r} has more than {limits.max_inputs} inputs: divide it into several values", code="too_large"
            )
    if type(raw_params) is not dict:
        raise _invalid(f"the params of {id_!r} must be a map, not {type(raw_params).__name__}")
    params: Any = check_json(raw_params, limits)
    return Derive(id_, function, inputs, params)


def _are_ids(items: Sequence[object], limits: Limits) -> bool:
    """Return whether `check_id` would accept all of `items`."""
    longest = limits.max_id_length
    for item in items:  # noqa: SIM110 - `all` takes twice as long
        if not (type(item) is str and 0 < len(item) <= longest and item.isprintable()):
            return False
    return True


def _parse_input(raw: object, limits: Limits) -> Input:
    if isinstance(raw, TypedId):  # in a list of a program; lists are long, so `to_wire` does not look into them
        raw = raw.to_wire()
    if type(raw) is dict and limits.max_matches and raw.keys() == {"match"}:
        return Match(check_id(raw["match"], limits, "match"))
    return check_id(raw, limits, "input id")


def _invalid(message: str) -> UnprocessableError:
    return UnprocessableError(message, code="invalid_update")
