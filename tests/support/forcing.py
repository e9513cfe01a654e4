"""Draws thresholds for tests of updates, and compares the owner's state with that of a reader.

Invariant: an owner and a reader that fold the same log have the same state.
"""

import random
from dataclasses import replace

from hypothesis import strategies as st

from rebaser_core import thresholds
from rebaser_core.commit import Commit, Kind
from rebaser_core.messages import decode_commit, decode_delta, encode_commit, encode_delta
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.state.computed_table import ComputedTable
from rebaser_core.thresholds import Thresholds
from tests.support.example_states import parts
from tests.support.graphs import Book

ENDS = [Thresholds.lowest(), Thresholds.highest()]
drawn = st.integers(0, 2**32).map(lambda seed: Thresholds.drawn(random.Random(seed)))


def forcing(*some: Thresholds) -> st.SearchStrategy[Thresholds]:
    """Draw thresholds for a test: the defaults, one of `some`, all lowest, all highest, or each at random."""
    return st.sampled_from([Thresholds(), *some, *ENDS]) | drawn


class Logged(Book):
    """A book whose commits are encoded as an owner encodes them; a reader folds them as well."""

    def __init__(self, *args: object) -> None:
        self.reader = ChangeSetState()
        super().__init__(*args)  # type: ignore[arg-type]

    def fold(self, commit: Commit) -> None:
        read = as_read(commit)
        if commit.kind is Kind.DVU:
            edited = {id_ for id_, at in self.state.roots.items() if at > (commit.covers or 0)}
            assert edited.isdisjoint(one.id for one in read.delta), "a result for what was edited meanwhile"
        super().fold(commit)
        self.reader.fold(self.state.last, read)

    def check_reader(self) -> None:
        """Check that the reader has the same state as the owner."""
        read, own = parts(self.reader), parts(self.state)
        assert read == own
        assert repr(read) == repr(own)


def as_read(commit: Commit) -> Commit:
    """Return `commit` as a reader decodes it. Checks that the result is the same for a delta in the message and in a
    blob."""
    inline = decode_commit(*encode_commit(commit))
    if not commit.delta:
        return inline
    blob = decode_delta(commit.kind, encode_delta(commit.delta))
    assert tuple(blob) == tuple(inline.delta) == tuple(commit.delta)
    limits = thresholds.now
    most = limits.inline_table_max_rows if isinstance(commit.delta, ComputedTable) else limits.inline_max_updates
    return replace(inline, delta=blob) if len(commit.delta) > most else inline
