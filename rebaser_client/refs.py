"""Typed references to values: type checkers know the type of a value, and the type is checked when the value is read or
set."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Any, Final, Generic, TypeVar, cast, get_origin

from pydantic import BaseModel, ValidationError

from rebaser_client.errors import ValueNotReady
from rebaser_core.errors import UnprocessableError
from rebaser_core.typed_ids import TypedId
from rebaser_core.updates import Derive, InputsLike, Match, Set, check_id
from rebaser_core.values import JsonInput, State, Value

T = TypeVar("T")

TYPES: Final = (bool, int, float, str, list, dict)


@dataclass(frozen=True, slots=True)
class Ref(TypedId[T]):
    """A reference to the value `id`, which has the type `type`.

        price = Ref("cart/1/price", float)  # a Ref[float]
        await client.enqueue_updates("shop", "main", [Set(price, 9.5)])
        await client.get("shop", "main", price)  # a float

    `type` is `bool`, `int`, `float`, `str`, `list`, `dict`, or a pydantic model. A type such as `list[float]` tells
    type checkers the type of the items, which is not checked at run time. An integer is accepted as a `float`, and
    converted, if a double represents it exactly. Null has none of these types. A model is stored as the JSON object
    that it makes of itself, and validates the object when it is read.

    Creating a `Ref` raises `UnprocessableError` if `type` is not one of these types, or if `id` is not valid.
    """

    id: str
    type: type[T]

    def __post_init__(self) -> None:
        check_id(self.id)
        _check_type(self.type)

    @property
    def _origin(self) -> Any:
        return get_origin(self.type) or self.type

    def set(self, value: T) -> Set:
        """Return the update that sets the value, the same as `Set(ref, value)`. Raise `UnprocessableError`, with code
        `wrong_type`, if `value` has another type."""
        return Set(self, value)

    def derive(
        self, function: str, inputs: InputsLike | None = None, params: Mapping[str, JsonInput] | None = None
    ) -> Derive:
        """Return the update that defines the value as the result of `function`, the same as `Derive(ref, function, …)`.

        Each of `inputs` may be a `Ref`, or anything that `Derive` accepts as an input. The type of the result is
        checked when the value is read.
        """
        return Derive(self, function, inputs, params)

    def of(self, value: Value | None) -> T:
        """Return `value` as a `T`. `value` is what a client has read for `id`; it is None if there is no such value.

        Raise `ValueNotReady` if the value does not exist, is not up to date, is an error, or is unset. Raise
        `UnprocessableError`, with code `wrong_type`, if the value has another type.
        """
        if value is None or value.state is not State.OK:
            raise ValueNotReady(self.id, None if value is None else value.state, None if value is None else value.error)
        model: Any = self.type
        if not _is_model(model):
            return self._checked(value.value)
        try:
            return cast("T", model.model_validate_json(json.dumps(value.value)))  # not as Python: a model may be strict
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = "".join(f"[{key!r}]" for key in first["loc"])
            told = f"the value of {self.id!r}{where} is invalid: {first['msg']}"
            raise UnprocessableError(told, code="wrong_type") from None

    def to_json(self, value: T) -> Any:
        """Return `value` in the form in which it is stored. Raise `UnprocessableError`, with code `wrong_type`, if it
        has another type."""
        checked = self._checked(value)
        if isinstance(checked, BaseModel):
            return checked.model_dump(mode="json", by_alias=True, round_trip=True)
        return checked

    def _checked(self, value: object) -> T:
        wanted = self._origin
        if wanted is float and type(value) is int and _is_double(value):
            return cast("T", float(value))
        # True is an `int` in Python, but not in JSON.
        if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
            found = "null" if value is None else type(value).__name__
            raise UnprocessableError(
                f"the value of {self.id!r} must be of the type {wanted.__name__}, not {found}", code="wrong_type"
            )
        return cast("T", value)


@dataclass(frozen=True, slots=True)
class Template(Generic[T]):
    """Makes references to values of the type `type` whose ids have the same form.

        price = Template("cart/{cart}/price", float)
        price.ref(cart=1)  # Ref("cart/1/price", float)
        price.match()  # Match("cart/*/price"), an input that stands for all of them
        price.names("cart/1/price")  # {"cart": "1"}

    A name stands for one part of an id between slashes, or for some of its characters. Creating a `Template` raises
    `UnprocessableError` if `form` or `type` is not valid.
    """

    form: str
    type: type[T]

    def __post_init__(self) -> None:
        _check_type(self.type)
        try:
            parts = list(Formatter().parse(self.form))
        except (ValueError, TypeError) as error:
            raise _invalid(f"invalid template {self.form!r:.80}: {error}") from None
        names = [name for _, name, _, _ in parts if name is not None]
        plain = all(name.isidentifier() and not spec and not how for _, name, spec, how in parts if name is not None)
        if not names or not plain or len(set(names)) < len(names):
            raise _invalid(
                f"invalid template {self.form!r:.80}: it needs names in braces, each once, as in a/{{name}}/b"
            )
        check_id(self.form)

    def ref(self, /, **names: object) -> Ref[T]:
        """Return the reference to the value with these names. The text of a name must not be empty or contain `/`.

        Raise `UnprocessableError` if a name is missing, unknown or invalid.
        """
        texts = self._texts(names)
        if missing := self._names - texts.keys():
            raise _invalid(f"the template {self.form!r} also needs {', '.join(sorted(missing))}")
        return Ref(self.form.format(**texts), self.type)

    def match(self, /, **names: object) -> Match:
        """Return an input that stands for all values with these names. A name that is not given may be anything.

        Its `glob` is also a pattern for `values` and `items`. Raise the errors of `ref`, and `UnprocessableError` if a
        name or the template contains `*`, which has a meaning in patterns.
        """
        texts = self._texts(names)
        if "*" in "".join((self.form, *texts.values())):
            raise _invalid(f"no pattern matches the character * itself, which is in {self.form!r} or in a name")
        return Match(self.form.format(**dict.fromkeys(self._names, "*") | texts))

    def names(self, id_: str) -> dict[str, str] | None:
        """Return the names with which `ref` makes the id `id_`, or None if the id has another form."""
        pattern = "".join(
            re.escape(text) + ("" if name is None else f"(?P<{name}>[^/]+)")
            for text, name, _, _ in Formatter().parse(self.form)
        )
        found = re.fullmatch(pattern, id_)
        return None if found is None else found.groupdict()

    @property
    def _names(self) -> set[str]:
        return {name for _, name, _, _ in Formatter().parse(self.form) if name is not None}

    def _texts(self, names: Mapping[str, object]) -> dict[str, str]:
        texts = {name: str(value) for name, value in names.items()}
        for name, text in texts.items():
            if name not in self._names:
                raise _invalid(f"the template {self.form!r} has no name {name!r:.80}")
            if not text or "/" in text:
                raise _invalid(f"the name {name} of {self.form!r} must be text without '/', not {text!r:.80}")
        return texts


def _check_type(given: object) -> None:
    if (get_origin(given) or given) not in TYPES and not _is_model(given):
        raise UnprocessableError(
            f"the type of a Ref must be one of {', '.join(one.__name__ for one in TYPES)}, or a pydantic model, "
            f"not {given!r:.80}",
            code="invalid_argument",
        )


def _is_model(given: Any) -> Any:
    return isinstance(given, type) and issubclass(given, BaseModel)


def _invalid(message: str) -> UnprocessableError:
    return UnprocessableError(message, code="invalid_argument")


def _is_double(value: int) -> bool:
    try:
        return int(float(value)) == value
    except OverflowError:
        return False
