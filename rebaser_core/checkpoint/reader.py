"""Reads checkpoints of versions 2 and 3, which store values in columns.

Invariant: bytes that are not a complete checkpoint are refused, because other programs may have written them.
"""

from collections.abc import Callable
from itertools import compress, pairwise
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rebaser_core.blobs.address import check_address
from rebaser_core.checkpoint import schema
from rebaser_core.checkpoint.chain import Chain, PartRef
from rebaser_core.checkpoint.part_file import PartFile
from rebaser_core.checkpoint.part_loader import PartLoader, RowBatch
from rebaser_core.checkpoint.schema import (
    COLUMNS,
    listed,
    natural,
    read_branch,
    read_flag,
    read_json,
    read_taken,
    read_template,
    text,
)
from rebaser_core.commit import PULL_ATTEMPT, Applied, Attempt
from rebaser_core.encoding.payload import malformed
from rebaser_core.errors import RebaserError
from rebaser_core.history import MAX_MARKS, Mark
from rebaser_core.limits import COMMIT_LIMITS
from rebaser_core.messages.commit_fields.decision import add_digests, read_decision
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.state.kinds import FALSE, FLOAT, INT, OTHER
from rebaser_core.state.value_columns import ValueColumns
from rebaser_core.updates import parse_recompute
from rebaser_core.values import Fault, Json

MAX_PARTS = 100_000

T = TypeVar("T")


class ChainReader:
    """The implementation of `CheckpointReader` for versions 2 and 3 of the format."""

    def __init__(self, newest: bytes, address: str) -> None:
        self._newest = PartRef(address, len(newest))
        self._state = ChangeSetState()
        self._loader: PartLoader | None = None
        self._is_base = True  # whether the part that is being read is the base
        self._template_of: dict[str, int] = {}
        self._texts: dict[str, str] = {}
        self._head = _reading(lambda: _Head(PartFile(newest)))
        self.before = self._head.base + self._head.deltas

    def adopt(self, columns: ValueColumns) -> None:
        self._state.cells.columns.adopt(columns)

    def add(self, data: bytes) -> None:
        _reading(lambda: self._add(PartFile(data)))

    def finish(self) -> tuple[ChangeSetState, Chain]:
        return _reading(self._finish)

    def _add(self, file: PartFile) -> None:
        if file.first == 0:
            self._is_base = self._loader is None
            self._close()
            self._loader = PartLoader(self._state.cells.columns)
        if (file.layer == "base") != self._is_base:
            raise malformed("the parts of the checkpoint are not one base followed by deltas")
        if self._loader is None or file.first != self._count():
            raise malformed("a part of the checkpoint is missing, repeated or out of order")
        for number in range(file.reader.num_record_batches):
            self._add_batch(file, number)

    def _count(self) -> int:
        """Return the number of rows of the current part that have been read so far."""
        return 0 if self._loader is None else self._loader.count

    def _add_batch(self, file: PartFile, number: int) -> None:
        batch, metadata = file.batch(number)
        if batch.num_rows and self._loader is not None:
            self._loader.add(self._rows(batch, file.version))
        if schema.OUTCOMES in metadata:
            self._read_outcomes(metadata)

    def _read_outcomes(self, metadata: dict[bytes, bytes]) -> None:
        rows = [listed(row, 3) for row in read_json(metadata[schema.OUTCOMES])]
        decisions = [read_decision(decided) for _, _, decided in rows]
        add_digests(decisions, text(read_json(metadata.get(schema.DIGESTS, b'""'))))
        for (commit, at_ms, _), decision in zip(rows, decisions, strict=True):
            self._state.remember(decision, natural(commit), natural(at_ms))

    def _close(self) -> None:
        if self._loader is not None:
            self._loader.close()

    def _finish(self) -> tuple[ChangeSetState, Chain]:
        self._close()
        self._state.cells.columns.settle()
        self._take_head()
        state, head = self._state, self._head
        for outcomes, kept in zip((state.outcomes, state.redriven), head.outcomes, strict=True):
            for forgotten in list(outcomes)[: max(len(outcomes) - kept, 0)]:
                del outcomes[forgotten]
        if [len(state.cells), len(state.roots), [len(state.outcomes), len(state.redriven)]] != head.counts:
            raise malformed("the parts of the checkpoint do not match its counts")
        return state, self._chain()

    def _chain(self) -> Chain:
        head, newest = self._head, (self._newest,)
        if self._is_base:
            return Chain(head.last, head.base + newest)
        return Chain(head.last, head.base, head.deltas + newest)

    def _take_head(self) -> None:
        """Copy the fields of the checkpoint's head (`_Head`) to the state."""
        state, head = self._state, self._head
        state.last, state.covers, state.applied = head.last, head.covers, head.applied
        state.attempts, state.recompute = head.attempts, head.recompute
        state.edited, state.untracked = head.edited, head.untracked
        state.weight, state.marks, state.branch = head.weight, head.marks, head.branch
        state.taken, state.protected, state.born_ms = head.taken, head.protected, head.born_ms
        edited = state.cells.columns.edited
        if edited.min() < 0 or max(state.edited, state.untracked, int(edited.max())) > state.last:
            raise malformed("a value was defined by a commit that is newer than the checkpoint")

    # -- rows ------------------------------------------------------------------------------------------------------

    def _rows(self, batch: pa.RecordBatch, version: int) -> RowBatch:
        def column(name: str) -> Any:
            return batch.column(COLUMNS[name])

        ids = _texts(column("id"))
        if "" in ids or column("id").null_count:
            raise malformed("a row of the checkpoint has no id")
        kinds, bits, others = self._values(column, batch.num_rows)
        self._read_roots(ids, column("root"))
        templates = self._templates(column("definition"))
        inputs = column("inputs")
        lengths = _filled(inputs.value_lengths(), 0, np.int32)
        refs = inputs.flatten()
        arity = self._state.cells.columns.templates.arity
        if refs.null_count or (lengths != np.where(templates >= 0, arity[templates], 0)).any():
            raise malformed("the number of inputs in a row of the checkpoint does not match its definition")
        tracked = version > schema.UNTRACKED_VERSION
        edited = _filled(column("edited"), 0, np.int64) if tracked else np.zeros(batch.num_rows, np.int64)
        faults = self._faults(column)
        return RowBatch(ids, _states(column("state")), kinds, bits, others, faults, templates, refs.to_numpy(), edited)

    def _read_roots(self, ids: list[str], column: pa.Array) -> None:
        roots = _filled(column, 0, np.int64)
        if roots.min() < 0:
            raise malformed("a field of the checkpoint is not a natural number")
        owed = roots > self._head.covers
        if owed.any():
            owing = ids if owed.all() else compress(ids, owed.tolist())
            self._state.roots.update(zip(owing, roots[owed].tolist(), strict=True))

    def _values(self, column: Callable[[str], Any], count: int) -> tuple[NDArray[Any], NDArray[Any], dict[int, Json]]:
        kinds, bits, values = np.zeros(count, np.uint8), np.zeros(count, np.int64), np.zeros(count, np.uint8)
        valid = {name: _valid(column(name)) for name in ("integer", "double", "boolean", "text", "json")}
        for mask in valid.values():
            values += mask
        if values.max() > 1:
            raise malformed("a row of the checkpoint has more than one value")
        integers, doubles, booleans = valid["integer"], valid["double"], valid["boolean"]
        if integers.any():
            kinds[integers] = INT
            bits[integers] = _filled(column("integer"), 0, np.int64)[integers]
        if doubles.any():
            numbers = _filled(column("double"), 0.0, np.float64)
            if not np.isfinite(numbers).all():
                raise malformed("the checkpoint contains a number that is not finite")
            kinds[doubles] = FLOAT
            bits[doubles] = numbers.view(np.int64)[doubles]
        if booleans.any():
            kinds[booleans] = FALSE + _filled(column("boolean"), False, np.uint8)[booleans]
        others: dict[int, Json] = {}
        for name, read in (("text", None), ("json", _container)):
            places = np.flatnonzero(valid[name]).tolist()
            if places:
                kinds[places] = OTHER
                texts = _texts(column(name).drop_null())
                others.update(zip(places, map(read, texts) if read else texts, strict=True))
        return kinds, bits, others

    def _templates(self, column: pa.DictionaryArray) -> NDArray[np.int32]:
        """Return, for each row of `column`, the index of its definition in `Columns.templates`, or -1 if the row has no
        definition."""
        columns, known = self._state.cells.columns, self._template_of
        indices = _filled(column.indices, -1, np.int64)
        used = np.unique(indices[indices >= 0])
        places = np.full(len(column.dictionary) + 1, -1, np.int32)  # index -1 (no definition) selects the last element
        for index, definition in zip(used.tolist(), _texts(column.dictionary.take(pa.array(used))), strict=True):
            if definition not in known:
                template = read_template(definition)
                known[definition] = columns.templates.place(template.function, template.inputs, template.params)
            places[index] = known[definition]
        found: NDArray[np.int32] = places[indices]
        return found

    def _faults(self, column: Callable[[str], Any]) -> dict[int, Fault]:
        columns = [column(f"error_{name}") for name in ("code", "message", "origin")]
        positions, *others = [np.flatnonzero(_valid(array)).tolist() for array in columns]
        if any(other != positions for other in others):
            raise malformed("an error in the checkpoint lacks its code, its message or its origin")
        own = self._texts.setdefault  # many values have the same texts; equal texts share one object
        rows = zip(*[_texts(array.drop_null()) for array in columns], strict=True)
        return {at: Fault(*[own(word, word) for word in row]) for at, row in zip(positions, rows, strict=True)}


class _Head:
    """The JSON at the end of the newest part, which contains everything about the state that is not in rows.

    Unknown fields are ignored, so a field that readers must not ignore needs a new version of the format.
    """

    def __init__(self, file: PartFile) -> None:
        count = file.reader.num_record_batches
        raw = read_json(file.batch(count - 1)[1].get(schema.HEAD, b"null")) if count else None
        if type(raw) is not dict:
            raise malformed("the blob is not the newest part of a checkpoint")
        self.last, self.covers = natural(raw.get("last")), natural(raw.get("covers"))
        self.applied: Applied | None = None
        if raw.get("applied") is not None:
            stream, sequence = listed(raw["applied"], 2)
            self.applied = Applied(text(stream), natural(sequence))
        recompute = [listed(row, 2) for row in listed(raw.get("recompute"))]
        self.recompute = {parse_recompute(wire, COMMIT_LIMITS): natural(sequence) for wire, sequence in recompute}
        attempts = [Attempt(*map(natural, listed(row, 4))) for row in listed(raw.get("attempts"))]
        if raw.get("pull") is not None:
            first_ms, deaths = map(natural, listed(raw["pull"], 2))
            attempts.append(Attempt(PULL_ATTEMPT, 0, first_ms, deaths))
        self.attempts = {attempt.sequence: attempt for attempt in attempts}
        self.outcomes = list(map(natural, listed(raw.get("outcomes"), 2)))
        self.counts = [natural(raw.get("values")), natural(raw.get("roots")), self.outcomes]
        self.base, self.deltas = _parts(raw.get("base")), _parts(raw.get("deltas"))
        self.weight, self.marks = _history(raw.get("history"))
        self.taken, self.protected = read_taken(raw.get("taken")), read_flag(raw.get("protected"))
        self.born_ms = natural(raw.get("bornMs", 0))
        self.edited = self.untracked = self.last  # version 2 does not record these sequences; `last` is an upper bound
        if file.version > schema.UNTRACKED_VERSION:
            self.edited, self.untracked = natural(raw.get("edited")), natural(raw.get("untracked"))
        self.branch = read_branch(raw.get("branch"), self.edited)


def _history(raw: object) -> tuple[int, list[Mark]]:
    """Return the weight of the log (bytes) and its marks. For a checkpoint of an earlier release, which records
    neither, return 0 and an empty list."""
    if raw is None:
        return 0, []
    weight, rows = listed(raw, 2)
    if len(listed(rows)) > MAX_MARKS:
        raise malformed(f"a checkpoint has more than {MAX_MARKS} marks")
    marks = [Mark(*map(natural, listed(row, 4))) for row in rows]
    if any(older.sequence >= newer.sequence or older.at_ms > newer.at_ms for older, newer in pairwise(marks)):
        raise malformed("the marks of a checkpoint are out of order")
    return natural(weight), marks


def _parts(raw: object) -> tuple[PartRef, ...]:
    if len(rows := listed(raw)) > MAX_PARTS:
        raise malformed(f"a checkpoint has more than {MAX_PARTS} parts")
    pairs = [listed(row, 2) for row in rows]
    return tuple(PartRef(check_address(address), natural(size)) for address, size in pairs)


def _reading(read: Callable[[], T]) -> T:
    """Return the result of `read`. If pyarrow or NumPy raises an error, raise `UnprocessableError` (code `malformed`)
    instead."""
    try:
        return read()
    except RebaserError:
        raise
    except (pa.ArrowException, ValueError, TypeError, LookupError, ArithmeticError, OSError, MemoryError) as error:
        raise malformed(f"the checkpoint cannot be read: {type(error).__name__}: {str(error)[:200]}") from None


def _states(column: pa.DictionaryArray) -> NDArray[np.uint8]:
    if not column.dictionary.equals(schema.STATES):
        raise malformed("the states that the checkpoint lists are not those of its format")
    return _filled(column.indices, -1, np.int8).astype(np.uint8)  # -1, for null, becomes `REFERENCE`


def _valid(column: pa.Array) -> NDArray[np.bool_]:
    """Return a mask that is true for each item of `column` that is not null."""
    if not column.null_count:
        return np.ones(len(column), np.bool_)
    valid: NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _filled(column: pa.Array, instead: Any, type_: Any) -> NDArray[Any]:
    """Return `column` as an array of the type `type_`, with `instead` in place of null."""
    filled = column.fill_null(instead) if column.null_count else column
    array: NDArray[Any] = filled.to_numpy(zero_copy_only=False).astype(type_, copy=False)
    return array


def _texts(column: pa.Array) -> list[str]:
    texts: list[str] = column.to_numpy(zero_copy_only=False).tolist()
    return texts


def _container(raw: str) -> Json:
    value: Json = read_json(raw.encode())
    if type(value) is not list and type(value) is not dict:
        raise malformed("the column `json` of the checkpoint contains a value that is neither an array nor a map")
    return value
