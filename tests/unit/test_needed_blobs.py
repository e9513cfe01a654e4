"""A commit names every blob that it needs; otherwise garbage collection would delete blobs that the log needs."""

import dataclasses
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import pytest

from rebaser.change_set.log.needed_blobs import ADDRESS_BYTES, needs_blobs, with_blobs_named
from rebaser_core import commit as commits
from rebaser_core.blobs.address import address_of
from rebaser_core.commit import BlobRef, CarriedOutcome, Commit, Decision, Kind, Origin, Outcome, Replay
from rebaser_core.ids import RequestId
from rebaser_core.messages import decode_addresses
from rebaser_core.messages.headers.branches import LIST, MAX_ADDRESSES
from tests.support.kept_log import kept_blobs

pytestmark = pytest.mark.anyio

BLOB = BlobRef(address_of(b"a part"), 6)
DECISION = Decision(1, RequestId("r"), Outcome.CONFLICTS, result=BLOB)
OTHER = address_of(b"a part of a checkpoint")
PARTS: dict[str, dict[str, Any]] = {
    "delta_blob": {"delta_blob": BLOB},
    "before_blob": {"before_blob": BLOB},
    "origin.tail_blob": {"origin": Origin("main", 1, "main", 1, tail_blob=BLOB)},
    "replay.blob": {"replay": Replay(blob=BLOB)},
    "requests.result": {"requests": (DECISION,)},
    "carried.decision.result": {"carried": (CarriedOutcome(DECISION, 1, 1),)},
}
NAMED_BY_WRITER = {
    "checkpoint.changes",  # named together with all parts of the checkpoint, which the commit does not list
    "collection.listed",  # named by the run of garbage collection
}


def commit(**fields: Any) -> Commit:
    return Commit("c", 0, Kind.REBASE, 0, "o", None, None, **fields)


def paths(kind: type, seen: tuple[type, ...] = ()) -> Iterator[str]:
    """Yield the paths of fields of type `BlobRef`, in `kind` and in the types of its fields."""
    for name, hint in get_type_hints(kind, vars(commits)).items():
        for one in {hint, *get_args(hint)}:
            if one is BlobRef:
                yield name
            elif dataclasses.is_dataclass(one) and isinstance(one, type) and one not in seen:
                yield from (f"{name}.{path}" for path in paths(one, (*seen, kind)))


def test_these_are_all_parts_of_a_commit_that_can_be_in_blobs() -> None:
    assert set(paths(Commit)) == {*PARTS, *NAMED_BY_WRITER}


@pytest.mark.parametrize("blobs", [(), (OTHER,)], ids=["alone", "beside others"])
@pytest.mark.parametrize("fields", PARTS.values(), ids=PARTS)
async def test_a_part_in_a_blob_is_named(fields: dict[str, Any], blobs: tuple[str, ...]) -> None:
    written = commit(**fields, blobs=blobs)
    assert needs_blobs(written)
    assert set((await with_blobs_named(kept_blobs(), written, 10**6)).blobs) == {BLOB.address, *blobs}
    assert not needs_blobs(commit())


@pytest.mark.parametrize(
    ("others", "max_bytes", "listed"),
    [
        (MAX_ADDRESSES - 1, 10**6, False),
        (MAX_ADDRESSES, 10**6, True),
        (2, 3 * ADDRESS_BYTES, False),
        (2, 3 * ADDRESS_BYTES - 1, True),
    ],
)
async def test_addresses_that_do_not_fit_into_a_header_are_all_in_a_list(
    others: int, max_bytes: int, listed: bool
) -> None:
    store, blobs = kept_blobs(), tuple(address_of(b"%d" % number) for number in range(others))
    named = (await with_blobs_named(store, commit(delta_blob=BLOB, blobs=blobs), max_bytes)).blobs
    if listed:
        (only,) = named
        assert only.startswith(LIST)
        named = decode_addresses(store.kept[only[1:]])
    assert sorted(named) == sorted({BLOB.address, *blobs})
