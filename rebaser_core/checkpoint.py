"""The folded state as bytes, and back.

Invariant: a checkpoint is the state after one commit, whatever is folded while it is written, and reading it gives a
state that folds the rest of the log exactly as the original would.

Format 1 is a CBOR sequence (RFC 8742): a header map; then parts, each an array that begins with its kind, in any order
and number; then a trailer that counts what must have come. Cells stand in columns, which is smaller and several times
faster than a map for each. `dependents` follow from the definitions and are not stored; `checkpoint` is not either,
because the commit that names this one comes after it.
"""

from collections.abc import Iterator, Sequence
from io import BytesIO
from itertools import islice
from typing import Any

from rebaser_core.columns import CODES
from rebaser_core.commit import Applied, Attempt
from rebaser_core.errors import UnsupportedVersion
from rebaser_core.limits import COMMIT_LIMITS
from rebaser_core.messages.commit import read_decision, write_decision
from rebaser_core.payload import CBOR, check_tree, dumps, malformed, read_item, read_unchecked
from rebaser_core.state import ChangeSetState, Recorded, View
from rebaser_core.updates import Derive, Input, Match, parse_recompute
from rebaser_core.values import Fault, State

FORMAT = "rebaser-checkpoint"
VERSION = 1
CHUNK = 2_000  # entries of one part: a few milliseconds to write, some ten to read

_STATES = {"o": State.OK, "s": State.STALE, "e": State.ERROR, "u": State.UNSET}
_LETTERS = {state: letter for letter, state in _STATES.items()}


# -- writing -----------------------------------------------------------------------------------------------------------


def write_checkpoint(state: ChangeSetState, view: View) -> Iterator[bytes]:
    """The checkpoint of `state` at `view`, in chunks to be joined. Call it before anything is folded after `view`.

    All else than cells is copied by the call itself, so the caller may fold commits between two chunks. The view must
    stay open until the last one.
    """
    assert state.last == view.sequence  # noqa: S101 - else the parts would be of different commits
    applied = state.applied
    header = {
        "format": FORMAT,
        "version": VERSION,
        "last": view.sequence,
        "covers": view.covers,
        "applied": [applied.stream, applied.sequence] if applied else None,
    }
    if state.recompute:
        header["recompute"] = [[asked.to_wire(), at] for asked, at in state.recompute.items()]
    outcomes = [*state.outcomes.values(), *state.redriven.values()]
    return _write(header, view, outcomes, list(state.attempts.values()))


def _write(
    header: dict[str, Any], view: View, outcomes: Sequence[Recorded], attempts: Sequence[Attempt]
) -> Iterator[bytes]:
    yield dumps(CBOR, header)
    ids = view.ids()
    for some_ids in _chunks(ids):
        yield dumps(CBOR, _write_cells(view, some_ids))
    for roots in _chunks(view.roots.items()):
        yield dumps(CBOR, ["roots", [id_ for id_, _ in roots], [at for _, at in roots]])
    for recorded in _chunks(outcomes):
        yield dumps(CBOR, ["outcomes", [[one.commit, one.at_ms, write_decision(one.decision)] for one in recorded]])
    for tried in _chunks(attempts):
        yield dumps(CBOR, ["attempts", [_write_attempt(one) for one in tried]])
    yield dumps(CBOR, ["end", len(ids), len(view.roots), len(outcomes), len(attempts)])


def _write_attempt(one: Attempt) -> list[int]:
    row = [one.sequence, one.count, one.first_ms]
    return [*row, one.deaths] if one.deaths else row


def _chunks(items: Any) -> Iterator[list[Any]]:
    rest = iter(items)
    while chunk := list(islice(rest, CHUNK)):
        yield chunk


def _write_cells(view: View, ids: list[str]) -> list[Any]:
    letters: list[str] = []
    values: list[Any] = []
    faults: list[Any] = []
    definitions: list[Any] = []
    for position, id_ in enumerate(ids):
        cell = view.cell(id_)
        assert cell is not None  # noqa: S101 - the view named it
        letters.append(_LETTERS[cell.state])
        values.append(cell.value)
        fault, definition = cell.fault, cell.definition
        if fault is not None:
            faults.append((position, fault.code, fault.message, fault.origin))
        if definition is not None:
            inputs = definition.to_wire()["inputs"] if definition.has_match else definition.inputs
            definitions.append((position, definition.function, inputs, definition.params))
    return ["cells", ids, "".join(letters), values, faults, definitions]


# -- reading -----------------------------------------------------------------------------------------------------------


def read_checkpoint(data: bytes) -> ChangeSetState:
    """The state in `data`; raises what `CheckpointReader` raises."""
    reader = CheckpointReader(data)
    for _ in reader:
        pass
    return reader.state


class CheckpointReader:
    """Reads a checkpoint in steps: iterate to its end, doing something else in between; then `state` is complete.

    Raises `UnprocessableError` for bytes that are no whole checkpoint, `UnsupportedVersion` for a newer format. A step
    reads one part.
    """

    def __init__(self, data: bytes) -> None:
        self._source = BytesIO(data)
        self._size = len(data)
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

    @property
    def state(self) -> ChangeSetState:
        """The state; raises `UnprocessableError` unless everything was read."""
        if not self._done:
            raise malformed("the checkpoint is not read to its end")
        return self._state

    def __iter__(self) -> Iterator[None]:
        self._read_header(read_item(self._source, COMMIT_LIMITS))
        yield
        while not self._done:
            # Most of a part is text that is checked by column; what is not goes through `check_tree` there.
            kind, *columns = _list(read_unchecked(self._source, COMMIT_LIMITS), at_least=1)
            read = self._readers.get(kind) if type(kind) is str else None
            if read is None:
                raise malformed(f"a checkpoint has no part {str(kind)[:40]!r}")
            read(columns)
            yield

    def _read_header(self, header: object) -> None:
        if type(header) is not dict or header.get("format") != FORMAT:
            raise malformed("not a checkpoint")
        version = _natural(header.get("version"))
        if version > VERSION:
            raise UnsupportedVersion(f"a checkpoint of format {version}; this program reads up to {VERSION}")
        state, applied = self._state, header.get("applied")
        state.last, state.covers = _natural(header.get("last")), _natural(header.get("covers"))
        if applied is not None:
            stream, sequence = _list(applied, exactly=2)
            state.applied = Applied(_text(stream), _natural(sequence))
        for row in _list(header.get("recompute", [])):
            asked, at = _list(row, exactly=2)
            state.recompute[parse_recompute(asked, COMMIT_LIMITS)] = _natural(at)

    def _read_cells(self, columns: list[Any]) -> None:
        ids, letters, values, faults, definitions = _list(columns, exactly=5)
        ids = _texts(ids, self._texts)
        if len(_text(letters)) != len(ids) or len(_list(values)) != len(ids) or not _STATES.keys() >= set(letters):
            raise malformed("columns of cells do not fit")
        check_tree(values)
        fault_at = dict(self._read_fault(row) for row in _list(faults))
        derived_at = dict(self._read_definition(row, ids) for row in _list(definitions))
        if not (fault_at.keys() | derived_at.keys()) <= set(range(len(ids))):
            raise malformed("an error or a definition belongs to no cell")
        here = self._state.cells.columns
        for position, (id_, letter, value) in enumerate(zip(ids, letters, values, strict=True)):
            definition = derived_at.get(position)
            if definition is None:
                here.set(id_, value)
            else:
                here.derive(definition)
            row = here.index[id_]
            here.put(row, value, fault_at.get(position))
            here.state[row] = CODES[_STATES[letter]]

    def _read_fault(self, row: object) -> tuple[int, Fault]:
        position, *texts = _list(row, exactly=4)
        return _natural(position), Fault(*_texts(texts, self._texts))

    def _read_definition(self, row: object, ids: list[str]) -> tuple[int, Derive]:
        position, function, raw_inputs, raw_params = _list(row, exactly=4)
        if type(raw_inputs) is not dict or type(raw_params) is not dict or _natural(position) >= len(ids):
            raise malformed("a definition is a position, a function, inputs and params")
        texts = self._texts
        inputs: dict[str, Input | tuple[Input, ...]] = {
            texts[_text(name)]: self._read_inputs(given) if type(given) is list else self._read_input(given)
            for name, given in raw_inputs.items()
        }
        return position, Derive(ids[position], texts[_text(function)], inputs, self._share(raw_params))

    def _read_inputs(self, given: list[Any]) -> tuple[Input, ...]:
        return tuple(
            [self._read_input(one) for one in given] if dict in map(type, given) else _texts(given, self._texts)
        )

    def _read_input(self, given: object) -> Input:
        if type(given) is not dict:
            return self._texts[_text(given)]
        if given.keys() != {"match"}:
            raise malformed("an input that is a map has a match in it")
        return Match(self._texts[_text(given["match"])])

    def _share(self, params: dict[str, Any]) -> dict[str, Any]:
        """`params`, or the same ones that came before: a formula usually stands in many cells."""
        if not set(map(type, params.values())) <= {str} or not set(map(type, params)) <= {str}:
            check_tree(params)
            return params
        return self._params.setdefault(tuple(params.items()), params)

    def _read_roots(self, columns: list[Any]) -> None:
        ids, sequences = _list(columns, exactly=2)
        ids = _texts(ids, self._texts)
        if len(_list(sequences)) != len(ids):
            raise malformed("columns of roots do not fit")
        self._state.roots.update(zip(ids, map(_natural, sequences), strict=True))

    def _read_outcomes(self, columns: list[Any]) -> None:
        for row in _list(*_list(columns, exactly=1)):
            commit, at_ms, decided = _list(row, exactly=3)
            self._state.remember(Recorded(read_decision(decided), _natural(commit), _natural(at_ms)))

    def _read_attempts(self, columns: list[Any]) -> None:
        for row in _list(*_list(columns, exactly=1)):
            tried = _list(row, at_least=3)
            attempt = Attempt(*map(_natural, _list(tried + [0] * (4 - len(tried)), exactly=4)))
            self._state.attempts[attempt.sequence] = attempt

    def _read_end(self, counts: list[Any]) -> None:
        state = self._state
        outcomes = len(state.outcomes) + len(state.redriven)
        if counts != [len(state.cells), len(state.roots), outcomes, len(state.attempts)]:
            raise malformed("parts of the checkpoint are missing")
        if self._source.tell() != self._size:
            raise malformed("something follows the checkpoint")
        self._done = True


class _Interned(dict[str, str]):
    """Equal texts as one object: ids come again as inputs, functions and codes in many cells."""

    def __missing__(self, text: str) -> str:
        self[text] = text
        return text


def _list(item: object, *, exactly: int | None = None, at_least: int = 0) -> list[Any]:
    if type(item) is not list or len(item) < at_least or (exactly is not None and len(item) != exactly):
        raise malformed("a part of the checkpoint has another shape")
    return item


def _texts(item: object, interned: _Interned) -> list[str]:
    """The list of texts `item`, interned."""
    if type(item) is not list or not set(map(type, item)) <= {str}:
        raise malformed("not a list of texts")
    return list(map(interned.__getitem__, item))


def _text(item: object) -> str:
    if type(item) is not str:
        raise malformed("not text")
    return item


def _natural(item: object) -> int:
    if type(item) is not int or item < 0:
        raise malformed("not a natural number")
    return item
