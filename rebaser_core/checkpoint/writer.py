"""Writes checkpoints, which contain either the whole state or the changes since the previous checkpoint.

Invariant: the cost is proportional to the number of rows that are written. The state must not change while these rows
are copied, which takes only a small part of the time.
"""

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rebaser_core import thresholds
from rebaser_core.blobs.address import address_of
from rebaser_core.branches.branch import Changed
from rebaser_core.checkpoint import schema
from rebaser_core.checkpoint.chain import Chain, PartRef
from rebaser_core.checkpoint.part_rows import PartRows, make_batch
from rebaser_core.checkpoint.schema import SCHEMAS, write_branch, write_json, write_template
from rebaser_core.commit import PULL_ATTEMPT
from rebaser_core.ids import RequestId
from rebaser_core.messages.commit_fields.decision import write_decision, write_digests, write_success
from rebaser_core.messages.tail import encode_changes
from rebaser_core.state.change_set import ChangeSetState, View
from rebaser_core.state.outcomes import RecordedOutcome, plain, unpack


@dataclass(frozen=True, slots=True)
class WrittenCheckpoint:
    """The blobs of a checkpoint that have to be stored.

    `parts` are the contents of the new parts, oldest first. `chain` describes all parts, and the new parts are at its
    end. `changes` is the content of the blob that contains the changes of the branch, or None if the change set is not
    a branch.
    """

    parts: list[bytes]
    chain: Chain
    changes: bytes | None = None


class CheckpointDraft:
    """A checkpoint of `state` that is about to be written, as the next part of `chain` or as a new base.

    `view` is a view of `state`. The draft must be created before the next commit is folded. The constructor copies
    everything except the values. The caller then calls `copy`, while the view is open, and `write`; each of them may
    run in another thread. If the checkpoint cannot be stored, the caller calls `discard`.

    `rows` is the approximate number of rows of values, and `encoded_rows` includes the rows of outcomes, which only
    `write` processes. `is_base` says whether the checkpoint is a new base. If `tracked` is true, the checkpoint records
    which commit last defined each value, and servers of the previous release cannot read it.
    """

    def __init__(self, state: ChangeSetState, view: View, chain: Chain, *, tracked: bool = True) -> None:
        assert state.last == view.sequence  # noqa: S101 - both are combined, so both must be at the same commit
        self._view = view
        self._columns = view.columns
        self._changes = view.columns.take_changes()
        changed = self._changes.count
        branch = state.branch
        # If the chain still belongs to the parent, its parts contain only outcomes of the parent's requests, so all
        # outcomes of this change set have to be written.
        since = chain.last if branch is None or chain.last >= branch.birth else 0
        # Older parts may contain outcomes that the state has since dropped. A reader therefore drops the oldest ones
        # until their number matches the head of the checkpoint. These are exactly the outcomes that the state has
        # dropped, because an outcome never moves back from `redriven` to `outcomes`.
        self._outcomes = state.outcomes.newer_than(since), state.redriven.newer_than(since)
        self._kept = [len(state.outcomes), len(state.redriven)]
        # Outcomes count as well, because a change set may have one value and a million outcomes. They do not decide
        # alone, because another change set may have thousands of outcomes and large values that never change.
        factor, values, new = thresholds.now.delta_changes_divisor, len(state.cells), sum(map(len, self._outcomes))
        mostly_new = factor * changed > values and factor * (changed + new) > values + sum(self._kept)
        self.is_base = chain.needs_base or mostly_new
        if self.is_base and since:
            self._outcomes = state.outcomes.newer_than(0), state.redriven.newer_than(0)
        self.rows = len(state.cells) if self.is_base else changed
        self.encoded_rows = self.rows + sum(map(len, self._outcomes))
        self.chain = Chain() if self.is_base else chain
        self._attempts = [
            [tried.sequence, tried.count, tried.first_ms, tried.deaths]
            for tried in state.attempts.values()
            if tried.sequence != PULL_ATTEMPT
        ]
        pull = state.attempts.get(PULL_ATTEMPT)
        self._recompute = [[recompute.to_wire(), sequence] for recompute, sequence in state.recompute.items()]
        self._applied = [state.applied.stream, state.applied.sequence] if state.applied else None
        self._version = schema.VERSION if tracked else schema.UNTRACKED_VERSION
        self._edited = {"edited": state.edited, "untracked": state.untracked} if tracked else {}
        self._history = [state.weight, [[mark.sequence, mark.named, mark.at_ms, mark.weight] for mark in state.marks]]
        self._branch: dict[str, Any] = {} if branch is None else {"branch": write_branch(branch)}
        self._branch |= {"taken": dict(state.taken)} if state.taken else {}
        self._branch |= {"protected": True} if state.protected else {}
        self._branch |= {"bornMs": state.born_ms} if state.born_ms else {}
        self._branch |= {} if pull is None else {"pull": [pull.first_ms, pull.deaths]}
        self._changes_at_base = None if branch is None or not branch.target else list(branch.changes.items())
        self._conflicts = {} if branch is None else dict(branch.conflicts)
        self._changed: list[tuple[str, Changed]] | None = None
        self._copied: PartRows | None = None
        self._values = view.columns.size

    def discard(self) -> None:
        """Mark the changes as not yet written, so that the next checkpoint includes them. The caller must call this if
        the checkpoint was not stored."""
        self._columns.give_back(self._changes)

    def copy(self) -> None:
        """Copy the rows that `write` will encode."""
        self._copied = PartRows(self._view, *self._select(), version=self._version)
        here = self._columns.edit_of
        if self._changes_at_base is not None:
            changed = [(id_, Changed(base, here(id_), self._conflicts.get(id_))) for id_, base in self._changes_at_base]
            self._changed = [(id_, one) for id_, one in changed if one.contested or not one.is_level]

    def write(self) -> WrittenCheckpoint:
        """Encode the checkpoint. The caller must first have called `copy`."""
        view, rows = self._view, self._copied
        assert rows is not None  # noqa: S101 - the caller has called `copy`
        layer = "base" if self.is_base else "delta"
        parts: list[bytes] = []
        chain = replace(self.chain, last=view.sequence)
        at = 0
        while True:
            out = _File(layer, rows, at)
            at = out.fill()
            if at < rows.count:
                data = out.close()
            else:
                self._write_rest(out, chain)
                data = out.close()
            part = PartRef(address_of(data), len(data))
            parts.append(data)
            if self.is_base:
                chain = replace(chain, base=(*chain.base, part))
            else:
                chain = replace(chain, deltas=(*chain.deltas, part))
            if at >= rows.count:
                changes = None if self._changed is None else encode_changes(self._changed)
                return WrittenCheckpoint(parts, chain, changes)

    def _select(self) -> tuple[NDArray[Any], list[str], NDArray[Any]]:
        """Return the numbers of the rows to write, the removed ids that have no row, and the numbers of other rows to
        which the written rows refer."""
        view = self._view
        columns = view.columns
        count = columns.count
        index = columns.index
        if self.is_base:
            rows = np.flatnonzero((columns.state[:count] != 0) | (columns.uses[:count] != 0))
            return rows, [id_ for id_ in view.roots if id_ not in index], rows[:0]
        touched, gone = self._changes.touched, []
        roots = {id_ for id_, at in view.roots.items() if at > self.chain.last}
        for id_ in sorted(self._changes.gone | roots):
            if id_ in index:  # the value exists again, or a definition has it as an input
                touched[index[id_]] = 1
            else:
                gone.append(id_)
        rows = np.flatnonzero(touched[:count])
        rows = rows[(columns.state[rows] != 0) | (columns.uses[rows] != 0)]  # all other rows have been freed
        named = np.unique(columns.refs[columns.input_places(rows[columns.template[rows] >= 0])[0]])
        return rows, gone, named[~np.isin(named, rows)]

    def _write_rest(self, out: "_File", chain: Chain) -> None:
        view = self._view
        all_outcomes = itertools.chain.from_iterable(kept.items() for kept in self._outcomes)
        while outcomes := list(itertools.islice(all_outcomes, thresholds.now.batch_outcomes)):
            written = list(itertools.starmap(_write_outcome, outcomes))
            rows, digests = [row for row, _ in written], write_digests([digest for _, digest in written])
            out.write_metadata({schema.OUTCOMES: rows} | ({schema.DIGESTS: digests} if digests else {}))
        head = {
            "last": view.sequence,
            "covers": view.covers,
            "applied": self._applied,
            "recompute": self._recompute,
            "attempts": self._attempts,
            "outcomes": self._kept,
            "values": self._values,
            "roots": len(view.roots),
            "base": [[part.address, part.size] for part in chain.base],
            "deltas": [[part.address, part.size] for part in chain.deltas],
            "history": self._history,
            **self._edited,
            **self._branch,
        }
        out.write_metadata({schema.HEAD: head})


def _write_outcome(request_id: RequestId, packed: bytes | RecordedOutcome) -> tuple[list[Any], bytes]:
    """Return the row of an outcome, and the digest of its request."""
    if (fields := plain(packed)) is not None:  # nearly all outcomes
        commit, at_ms, sequence, performed, digest = fields
        return [commit, at_ms, write_success(sequence, request_id, performed)], digest
    outcome = unpack(request_id, packed)
    return [outcome.commit, outcome.at_ms, write_decision(outcome.decision)], outcome.decision.digest


class _File:
    """An Arrow IPC file that is being written, with the rows of `rows` from position `first` on."""

    def __init__(self, layer: str, rows: PartRows, first: int) -> None:
        about = {"format": schema.FORMAT, "version": rows.version, "layer": layer, "first": first}
        self._sink = pa.BufferOutputStream()
        self._writer = pa.ipc.new_file(
            self._sink,
            SCHEMAS[rows.version].with_metadata({schema.PART: write_json(about)}),
            options=pa.ipc.IpcWriteOptions(
                compression=pa.Codec("zstd", 1) if rows.count > thresholds.now.uncompressed_max_rows else None,
                use_threads=False,
            ),
        )
        self._rows = rows
        self._empty: pa.RecordBatch | None = None
        self._first = first
        self._end = min(first + thresholds.now.part_rows, rows.count)  # the file may be full before this position
        self._templates = rows.templates(first, self._end - first)
        self._definitions = pa.array(
            [write_template(rows.known[place]) for place in self._templates.tolist()], pa.large_string()
        )

    def fill(self) -> int:
        """Write all remaining rows, or as many as fit in one file. Return the position at which the next file must
        begin."""
        at, most = self._first, thresholds.now.part_bytes
        while at < self._end and (at == self._first or self._sink.tell() < most):
            batch = self._rows.batch(at, self._end - at, self._templates, self._definitions)
            self._writer.write_batch(batch)
            at += batch.num_rows
        return at

    def write_metadata(self, metadata: dict[bytes, Any]) -> None:
        """Write a batch that has no rows but has `metadata`, with each value as JSON."""
        if self._empty is None:
            self._empty = make_batch({"id": []}, 0, self._templates, self._definitions, self._rows.version)
        encoded = {key: write_json(value) for key, value in metadata.items()}
        self._writer.write_batch(self._empty, custom_metadata=encoded)

    def close(self) -> bytes:
        self._writer.close()
        data: bytes = self._sink.getvalue().to_pybytes()
        return data
