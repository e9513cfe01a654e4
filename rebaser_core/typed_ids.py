"""Defines what updates need to know about typed references to values."""

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class TypedId(Generic[T]):
    """The id of a value, together with the type `T` of the value. `rebaser_client.Ref` is such a reference."""

    __slots__ = ()

    id: str

    def to_json(self, value: T) -> Any:
        """Return `value` in the form in which it is stored. Raise `UnprocessableError` if it has another type."""
        raise NotImplementedError

    def to_wire(self) -> str:
        """Return the form of this reference among the inputs of a derived value."""
        return self.id


def input_ids(source: Any) -> Any:
    """Return an input of a derived value, with ids instead of the typed ids in it."""
    if isinstance(source, Sequence) and not isinstance(source, str):
        return [item.id if isinstance(item, TypedId) else item for item in source]
    return source.id if isinstance(source, TypedId) else source
