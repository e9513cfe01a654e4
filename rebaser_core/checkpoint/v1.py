"""Reads checkpoints of version 1, which servers no longer write.

A checkpoint of version 1 is a CBOR sequence (RFC 8742). It begins with a map, which is the header. Any number of parts
follow, each of which is an array that begins with the part's kind. The last array contains the total number of items of
each kind in the parts.
"""

from io import BytesIO
from typing import Any

from rebaser_core.checkpoint.chain import Chain, PartRef
from rebaser_core.commit import Applied, Attempt
from rebaser_core.encoding.payload import check_tree, malformed, read_item, read_unchecked
from rebaser_core.errors import UnsupportedVersion
from rebaser_core.limits import COMMIT_LIMITS
from rebaser_core.messages.commit_fields.decision import read_decision
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.state.kinds import STATE_CODES
from rebaser_core.state.value_columns import ValueColumns
from rebaser_core.updates import Derive, Input
from rebaser_core.values import INT64_MAX, Fault, State

FORMAT = "rebaser-checkpoint"
VERSION = 1

_STATES = {"o": State.OK, "s": State.STALE, "e": State.ERROR, "u": State.UNSET}


class V1Reader:
    """The implementation of `CheckpointReader` for version 1 of the format."""

    before: tuple[PartRef, ...] = ()

    def __init__(self) -> None:
        self._state = ChangeSetState()
        self._done = False
        self._texts = _Interned()
        self._params: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
        self._readers = {
            "cells": self._read_cells,
            "roots": self._read_roots,
            "outcomes": self._read_outcomes,
            "attempts": self._read_attempts,
            "end": self._read_end,
        }

    def adopt(self, columns: ValueColumns) -> None:
        """Do nothing: this format is too rare to be worth it."""

    def add(self, data: bytes) -> None:
        source = BytesIO(data)
        self._read_header(read_item(source, COMMIT_LIMITS))
        while not self._done:
            # Most content is text. The methods that read the columns check the text, and call `check_tree` for the
            # rest.
            kind, *columns = _list(read_unchecked(source, COMMIT_LIMITS), at_least=1)
            read = self._readers.get(kind) if type(kind) is str else None
            if read is None:
                raise malformed(f"the checkpoint has a part of the unknown kind {str(kind)[:40]!r}")
            read(columns)
        if source.tell() != len(data):
            raise malformed("unexpected bytes follow the checkpoint")

    def finish(self) -> tuple[ChangeSetState, Chain]:
        return self._state, Chain()

    def _read_header(self, header: object) -> None:
        if type(header) is not dict or header.get("format") != FORMAT:
            raise malformed("the blob is not a checkpoint")
        version = _natural(header.get("version"))
        if version > VERSION:
            raise UnsupportedVersion(f"the checkpoint has format {version}: read it with a newer release of Rebaser")
        state, applied = self._state, header.get("applied")
        state.last, state.covers = _natural(header.get("last")), _natural(header.get("covers"))
        state.edited = state.untracked = state.last  # version 1 lacks these sequences; `last` is an upper bound
        if applied is not None:
            stream, sequence = _list(applied, exactly=2)
            state.applied = Applied(_text(stream), _natural(sequence))

    def _read_cells(self, columns: list[Any]) -> None:
        ids, letters, values, faults, definitions = _list(columns, exactly=5)
        ids = _texts(ids, self._texts)
        if len(_text(letters)) != len(ids) or len(_list(values)) != len(ids) or not _STATES.keys() >= set(letters):
            raise malformed("the columns of the values differ in length, or a state is unknown")
        check_tree(values)
        fault_at = dict(self._read_fault(row) for row in _list(faults))
        derived_at = dict(self._read_definition(row, ids) for row in _list(definitions))
        if not (fault_at.keys() | derived_at.keys()) <= set(range(len(ids))):
            raise malformed("an error or a definition of the checkpoint belongs to no value")
        if any(letter == "e" and position not in fault_at for position, letter in enumerate(letters)):
            raise malformed("a value of the checkpoint is in the state 'error', but has no error")
        state_columns = self._state.cells.columns
        for position, (id_, letter, value) in enumerate(zip(ids, letters, values, strict=True)):
            definition = derived_at.get(position)
            if definition is None:
                state_columns.set(id_, value)
            else:
                state_columns.derive(definition)
            row = state_columns.index[id_]
            state_columns.put(row, value, fault_at.get(position))
            state_columns.state[row] = STATE_CODES[_STATES[letter]]

    def _read_fault(self, row: object) -> tuple[int, Fault]:
        position, *texts = _list(row, exactly=4)
        return _natural(position), Fault(*_texts(texts, self._texts))

    def _read_definition(self, row: object, ids: list[str]) -> tuple[int, Derive]:
        position, function, raw_inputs, raw_params = _list(row, exactly=4)
        if type(raw_inputs) is not dict or type(raw_params) is not dict or _natural(position) >= len(ids):
            raise malformed(
                "a definition in the checkpoint does not consist of a position, a function, inputs and params"
            )
        texts = self._texts
        inputs: dict[str, Input | tuple[Input, ...]] = {
            texts[_text(name)]: texts[source] if type(source) is str else tuple(_texts(source, texts))
            for name, source in raw_inputs.items()
        }
        return position, Derive(ids[position], texts[_text(function)], inputs, self._share(raw_params))

    def _share(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return an equal map that was read earlier, or `params` itself if there is none.

        Many values usually have the same formula, so sharing their params saves memory.
        """
        if not set(map(type, params.values())) <= {str} or not set(map(type, params)) <= {str}:
            check_tree(params)
            return params
        return self._params.setdefault(tuple(params.items()), params)

    def _read_roots(self, columns: list[Any]) -> None:
        ids, sequences = _list(columns, exactly=2)
        ids = _texts(ids, self._texts)
        if len(_list(sequences)) != len(ids):
            raise malformed("the columns of the roots differ in length")
        roots = dict(zip(ids, map(_natural, sequences), strict=True))
        if any(sequence <= self._state.covers for sequence in roots.values()):
            raise malformed("a root of the checkpoint is not newer than the last update of derived values")
        self._state.roots.update(roots)

    def _read_outcomes(self, columns: list[Any]) -> None:
        for row in _list(*_list(columns, exactly=1)):
            commit, at_ms, decided = _list(row, exactly=3)
            self._state.remember(read_decision(decided), _natural(commit), _natural(at_ms))

    def _read_attempts(self, columns: list[Any]) -> None:
        for row in _list(*_list(columns, exactly=1)):
            fields = _list(row, at_least=3)
            attempt = Attempt(*map(_natural, _list(fields + [0] * (4 - len(fields)), exactly=4)))
            self._state.attempts[attempt.sequence] = attempt

    def _read_end(self, counts: list[Any]) -> None:
        state = self._state
        outcomes = len(state.outcomes) + len(state.redriven)
        if counts != [len(state.cells), len(state.roots), outcomes, len(state.attempts)]:
            raise malformed("the parts of the checkpoint do not match the counts at its end")
        self._done = True


class _Interned(dict[str, str]):
    """A cache of strings that makes equal strings share one object. Ids are repeated as inputs, and many values have
    the same function or error code."""

    def __missing__(self, text: str) -> str:
        self[text] = text
        return text


def _list(item: object, *, exactly: int | None = None, at_least: int = 0) -> list[Any]:
    if type(item) is not list or len(item) < at_least or (exactly is not None and len(item) != exactly):
        raise malformed("a part of the checkpoint is not a list of the expected length")
    return item


def _texts(item: object, interned: _Interned) -> list[str]:
    """Check that `item` is a list of strings, and return it with the strings interned."""
    if type(item) is not list or not set(map(type, item)) <= {str}:
        raise malformed("a field of the checkpoint is not a list of strings")
    return list(map(interned.__getitem__, item))


def _text(item: object) -> str:
    if type(item) is not str:
        raise malformed("a field of the checkpoint is not a string")
    return item


def _natural(item: object) -> int:
    if type(item) is not int or not 0 <= item <= INT64_MAX:
        raise malformed("a field of the checkpoint is not a natural number of at most 63 bits")
    return item
