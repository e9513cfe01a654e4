"""Golden files: every message in the form in which a release wrote it, kept permanently.

A file in `golden/` must stay readable and must never change. To add files for a new version or variant, add an example
below and run

    python -m tests.support.examples

which writes the missing files and never changes existing ones.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rebaser_core.blobs.garbage import decode_candidates, encode_candidates
from rebaser_core.checkpoint import read_checkpoint
from rebaser_core.commit import (
    Computed,
    Kind,
)
from rebaser_core.encoding.envelope import ContentType
from rebaser_core.messages import (
    REGISTRY,
    decode,
    decode_addresses,
    decode_changes,
    decode_commit,
    decode_delta,
    decode_replay,
    decode_result,
    decode_tail,
    decode_updates_blob,
    encode,
    encode_addresses,
    encode_changes,
    encode_commit,
    encode_delta,
    encode_replay,
    encode_result,
    encode_tail,
    encode_updates_blob,
)
from rebaser_core.state.columns import Columns
from rebaser_core.state.computed_table import ComputedTable
from tests.support.example_messages import (
    ADDRESS,
    AT,
    CHANGES,
    COMMITS,
    COMPUTED,
    CONFLICTS,
    ID,
    MATCH_CHANGES,
    MATCHES,
    OTHER,
    PROGRESS,
    REPLAY,
    REQUESTS,
    RESPONSES,
    TAIL,
    UPDATES,
)
from tests.support.example_states import (
    FOLDER,
    branch_part,
    branched,
    edited,
    first_part,
    parts,
    read_part,
    redriven_state,
    second_part,
    state,
    untracked,
)

EXTENSIONS = {ContentType.CBOR: "cbor", ContentType.JSON: "json"}


@dataclass(frozen=True)
class Example:
    """One golden file: the value that it must decode to. If `current`, that value must also encode to the same
    bytes."""

    name: str
    message: Any
    read: Callable[[dict[str, str], bytes], Any]
    write: Callable[[Any], tuple[dict[str, str] | None, bytes]]
    current: bool = True

    @property
    def path(self) -> Path:
        return FOLDER / self.name

    @property
    def headers_path(self) -> Path:
        return FOLDER / f"{self.name}.headers.json"


def bare(write: Callable[[Any], bytes], message: Any) -> tuple[None, bytes]:
    return None, write(message)


def anew(write: Callable[[], bytes], _: Any) -> tuple[None, bytes]:
    return None, write()


def table(items: Sequence[Computed]) -> ComputedTable:
    """Return `items` as the table that a large update returns."""
    columns = Columns()
    for row, item in enumerate(items):
        columns.set(item.id, None)
        columns.put(row, item.value, item.fault)
    count = len(items)
    return ComputedTable(columns.ids, columns.kind[:count], columns.bits[:count], columns.other, columns.faults)


def no_longer(_: Any) -> tuple[None, bytes]:
    raise AssertionError("no release writes this version any more")


def read_blob(decode_blob: Callable[[bytes], Any], _: dict[str, str], data: bytes) -> Any:
    return decode_blob(data)


def read_delta_blob(kind: Kind, _: dict[str, str], data: bytes) -> Any:
    return decode_delta(kind, data)


# The blobs of branches, of replies and of garbage collections: a name, the content, and how it is read and written.
BLOBS: tuple[tuple[str, Any, Callable[[bytes], Any], Callable[[Any], bytes]], ...] = (
    ("TailBlob.v1.rows.cbor", TAIL, decode_tail, encode_tail),
    ("ChangesBlob.v1.all.cbor", CHANGES, decode_changes, lambda changes: encode_changes(changes.items())),
    ("ChangesBlob.v2.match.cbor", MATCH_CHANGES, decode_changes, lambda changes: encode_changes(changes.items())),
    ("ReplayBlob.v1.all.cbor", REPLAY, partial(decode_replay, strategy=REPLAY.strategy), encode_replay),
    ("ResultBlob.v1.conflicts.cbor", CONFLICTS, decode_result, encode_result),
    ("AddressesBlob.v1.two.cbor", (ADDRESS, OTHER), decode_addresses, encode_addresses),
    ("Candidates.v1.two.bin", {OTHER: AT, ADDRESS: 0}, decode_candidates, partial(encode_candidates, run=ID)),
)


def examples() -> Iterator[Example]:
    for kind, versions in (
        ("EnqueueUpdatesRequest", REQUESTS),
        ("EnqueueUpdatesResponse", RESPONSES),
        ("DvuProgress", PROGRESS),
    ):
        for version, variants in versions.items():
            for variant, message in variants.items():
                for content_type, extension in EXTENSIONS.items():
                    yield Example(
                        f"{kind}.v{version}.{variant}.{extension}",
                        message,
                        decode,
                        partial(encode, content_type=content_type, version=version),
                        current=version == REGISTRY.lowest(message),
                    )
    for version, commits in COMMITS.items():
        for variant, commit in commits.items():
            for content_type, extension in EXTENSIONS.items():
                yield Example(
                    f"Commit.v{version}.{variant}.{extension}",
                    commit,
                    decode_commit,
                    partial(encode_commit, content_type=content_type),
                    current=version == REGISTRY.lowest(commit),
                )
    yield Example(
        "UpdatesBlob.v1.all.cbor",
        UPDATES,
        lambda _, data: decode_updates_blob(data),
        partial(bare, encode_updates_blob),
    )
    yield Example(
        "UpdatesBlob.v2.match.cbor",
        MATCHES,
        lambda _, data: decode_updates_blob(data),
        partial(bare, encode_updates_blob),
    )
    yield Example(
        "DeltaBlob.v2.match.cbor", MATCHES, partial(read_delta_blob, Kind.REBASE), partial(bare, encode_delta)
    )
    for variant, kind_, delta in (("updates", Kind.REBASE, UPDATES), ("computed", Kind.DVU, COMPUTED)):
        yield Example(
            f"DeltaBlob.v1.{variant}.cbor",
            delta,
            partial(read_delta_blob, kind_),
            partial(bare, encode_delta),
        )
    yield Example(
        "DeltaBlob.v2.computed.cbor",
        COMPUTED,
        lambda _, data: tuple(decode_delta(Kind.DVU, data)),
        partial(bare, lambda items: encode_delta(table(items))),
    )
    for variant, make in (("full", state), ("redriven", redriven_state)):
        yield Example(
            f"Checkpoint.v1.{variant}.cbor",
            parts(untracked(make())),
            lambda _, data: parts(read_checkpoint(data)),
            no_longer,
            current=False,
        )
    for name, value, decode_blob, encode_blob in BLOBS:
        yield Example(name, value, partial(read_blob, decode_blob), partial(bare, encode_blob))
    # These files are not compared byte for byte, because libraries decide how they write and compress.
    for name, folded, write in (
        ("v2.first", untracked(state()), partial(first_part, tracked=False)),
        ("v2.second", untracked(edited(state())), partial(second_part, tracked=False, base_tracked=False)),
        ("v2.compressed", untracked(state()), partial(first_part, worthwhile=0, tracked=False)),
        ("v3.first", state(), first_part),
        ("v3.second", edited(state()), second_part),
        ("v3.compressed", state(), partial(first_part, worthwhile=0)),
        ("v3.branch", branched(), branch_part),
    ):
        yield Example(
            f"Checkpoint.{name}.arrow",
            parts(folded),
            read_part,
            partial(anew, write),
            current=False,
        )


def write_missing() -> list[str]:
    """Write the files of examples that have none, and return their names."""
    FOLDER.mkdir(exist_ok=True)
    written = []
    for example in examples():
        if example.path.exists():
            continue
        headers, payload = example.write(example.message)
        with example.path.open("xb") as file:
            file.write(payload)
        written.append(example.name)
        if headers is not None:
            with example.headers_path.open("x") as file:
                file.write(json.dumps(headers, indent=2) + "\n")
    return written


if __name__ == "__main__":
    print(*write_missing(), sep="\n")
