"""Typed references to values: type checkers know the type of a value, and the type is checked when the value is read or
set."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeAlias, TypeVar, cast, get_origin

from rebaser_client.errors import ValueNotReady
from rebaser_core.errors import UnprocessableError
from rebaser_core.updates import Derive, Input, Set, check_id
from rebaser_core.values import JsonInput, State, Value

T = TypeVar("T")

TYPES: Final = (bool, int, float, str, list, dict)


@dataclass(frozen=True, slots=True)
class Ref(Generic[T]):
    """A reference to the value `id`, which has the type `type`.

        price = Ref("cart/1/price", float)  # a Ref[float]
        await client.enqueue_updates("shop", "main", [price.set(9.5)])
        await client.get("shop", "main", price)  # a float

    `type` is `bool`, `int`, `float`, `str`, `list` or `dict`. A type such as `list[float]` tells type checkers the type
    of the items, which is not checked at run time. An integer is accepted as a `float`, and converted, if a double
    represents it exactly. Null has none of these types.

    Creating a `Ref` raises `UnprocessableError` if `type` is not one of these types, or if `id` is not valid.
    """

    id: str
    type: type[T]

    def __post_init__(self) -> None:
        check_id(self.id)
        if self._origin not in TYPES:
            raise UnprocessableError(
                f"the type of a Ref must be one of {', '.join(one.__name__ for one in TYPES)}, not {self.type!r:.80}",
                code="invalid_argument",
            )

    @property
    def _origin(self) -> Any:
        return get_origin(self.type) or self.type

    def set(self, value: T) -> Set:
        """Return the update that sets the value. Raise `UnprocessableError` if `value` has another type."""
        return Set(self.id, cast("JsonInput", self._checked(value)))

    def derive(
        self, function: str, inputs: "RefInputs | None" = None, params: Mapping[str, JsonInput] | None = None
    ) -> Derive:
        """Return the `Derive` update that defines the value as the result of `function`.

        Each of `inputs` may be a `Ref`, or anything that `Derive` accepts as an input. The type of the result is
        checked when the value is read.
        """
        ids = {name: _input(source) for name, source in (inputs or {}).items()}
        return Derive(self.id, function, ids, params or {})

    def of(self, value: Value | None) -> T:
        """Return `value` as a `T`. `value` is what a client has read for `id`; it is None if there is no such value.

        Raise `ValueNotReady` if the value does not exist, is not up to date, is an error, or is unset. Raise
        `UnprocessableError`, with code `wrong_type`, if the value has another type.
        """
        if value is None or value.state is not State.OK:
            raise ValueNotReady(self.id, None if value is None else value.state, None if value is None else value.error)
        return self._checked(value.value)

    def _checked(self, value: object) -> T:
        wanted: Any = self._origin
        if wanted is float and type(value) is int and _is_double(value):
            return cast("T", float(value))
        # True is an `int` in Python, but not in JSON.
        if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
            found = "null" if value is None else type(value).__name__
            raise UnprocessableError(
                f"the value of {self.id!r} must be of the type {wanted.__name__}, not {found}", code="wrong_type"
            )
        return cast("T", value)


RefInput: TypeAlias = Ref[Any] | Input
RefInputs: TypeAlias = Mapping[str, RefInput | Sequence[RefInput]]


def _input(source: RefInput | Sequence[RefInput]) -> Input | Sequence[Input]:
    if isinstance(source, Ref):
        return source.id
    if isinstance(source, Sequence) and not isinstance(source, str):
        return [one.id if isinstance(one, Ref) else one for one in source]
    return source


def _is_double(value: int) -> bool:
    try:
        return int(float(value)) == value
    except OverflowError:
        return False
