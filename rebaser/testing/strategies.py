"""Strategies for Hypothesis: values, ids and updates that every server accepts.

Only this module imports Hypothesis, which a project under test installs by itself.
"""

from collections.abc import Sequence
from typing import Any

try:
    from hypothesis import strategies as st
    from hypothesis.strategies import SearchStrategy
except ModuleNotFoundError as error:
    if error.name != "hypothesis":
        raise
    text = "rebaser.testing.strategies needs Hypothesis: pip install hypothesis"
    raise ModuleNotFoundError(text, name=error.name) from error

from rebaser_core.limits import DEFAULT_LIMITS
from rebaser_core.updates import Derive, Remove, Set, Unset, Update
from rebaser_core.values import INT64_MAX, INT64_MIN, Json

FUNCTIONS = ("coalesce", "count", "list", "max", "merge", "min", "sum", "values")  # they take any number of inputs

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)  # a lone surrogate is not valid Unicode
_SCALARS: SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers(INT64_MIN, INT64_MAX)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _TEXT
)


def values(*, max_leaves: int = 10) -> SearchStrategy[Json]:
    """Return a strategy for values: null, booleans, 64-bit integers, finite doubles, texts, lists and maps.

    A list or map contains at most about `max_leaves` values.
    """
    return st.recursive(
        _SCALARS,
        lambda inner: st.lists(inner, max_size=5) | st.dictionaries(_TEXT, inner, max_size=5),
        max_leaves=max_leaves,
    )


def ids(*, max_size: int = 30) -> SearchStrategy[str]:
    """Return a strategy for ids of values: printable texts of 1 to `max_size` characters."""
    max_size = min(max_size, DEFAULT_LIMITS.max_id_length)
    return st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=max_size).filter(str.isprintable)


def updates(
    ids: Sequence[str] = ("a", "b", "c", "d", "e"),
    *,
    values: SearchStrategy[Json] | None = None,
    functions: Sequence[str] = FUNCTIONS,
) -> SearchStrategy[Update]:
    """Return a strategy for updates of the values `ids`: `Set`, `Derive`, `Unset` and `Remove`.

    The inputs of a `Derive` are some of `ids`, so cycles and missing inputs occur, too; servers accept both. `values`
    is the strategy for the values of `Set`. `functions` are the names of the functions of `Derive`; they must accept an
    input `values` that is a list of ids, and no params.
    """
    id_ = st.sampled_from(ids)
    inputs = st.fixed_dictionaries({"values": st.lists(id_, min_size=1, max_size=3).map(tuple)})
    return st.one_of(
        st.builds(Set, id_, _values() if values is None else values),
        st.builds(Derive, id_, st.sampled_from(functions), inputs),
        st.builds(Unset, id_),
        st.builds(Remove, id_),
    )


_values = values  # `updates` has a parameter of the same name
