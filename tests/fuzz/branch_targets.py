"""Fuzz targets for what branches and the garbage collection store beside messages: blobs, and headers of commits."""

from collections.abc import Callable

from rebaser_core.blobs.garbage import NEVER, decode_candidates, encode_candidates
from rebaser_core.branches.branch import Branch
from rebaser_core.commit import Commit, Strategy
from rebaser_core.messages import (
    decode_addresses,
    decode_changes,
    decode_replay,
    decode_result,
    decode_tail,
    encode_addresses,
    encode_changes,
    encode_replay,
    encode_result,
    encode_tail,
    is_deleted,
    join_tails,
    read_blobs,
    read_branch,
    read_edited,
    read_protected,
    read_row,
    read_source,
)
from rebaser_core.messages.headers.branches import LIST
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.values import INT64_MAX
from tests.fuzz.message_targets import framed, messages, unframed
from tests.fuzz.mutate import Mutator
from tests.fuzz.refusals import refused
from tests.support.examples import examples

HEADERS = ("X-Edited", "X-Branch", "X-Protected", "X-From", "X-Blobs")


def check_tail_blob(data: bytes) -> None:
    """What was copied is written as it was read, and each commit in it is folded or refused."""
    rows = refused(lambda: decode_tail(data))
    if not isinstance(rows, tuple):
        return
    assert repr(decode_tail(encode_tail(rows))) == repr(rows)
    half = len(rows) // 2
    assert join_tails(encode_tail(rows[:half]), encode_tail(rows[half:])) == encode_tail(rows)
    state = ChangeSetState()
    for row in rows:
        commit = refused(lambda row=row: read_row(row))  # type: ignore[misc]
        if isinstance(commit, Commit):
            state.last = state.last or min(commit.follows, INT64_MAX)  # as if a checkpoint had been loaded
            refused(lambda row=row, commit=commit: state.fold(row.sequence, commit))  # type: ignore[misc]
    state.values()


def check_changes(data: bytes) -> None:
    changes = refused(lambda: decode_changes(data))
    if isinstance(changes, dict):
        assert repr(decode_changes(encode_changes(changes.items()))) == repr(changes)
        branch = Branch(1)
        branch.set_changes(changes)
        assert branch.conflicts.keys() <= branch.changes.keys() == changes.keys()


def check_replay(data: bytes) -> None:
    replay = refused(lambda: decode_replay(data, Strategy.RECORD))
    if not isinstance(replay, Exception):
        assert repr(decode_replay(encode_replay(replay), Strategy.RECORD)) == repr(replay)  # type: ignore[arg-type]


def check_result(data: bytes) -> None:
    conflicts = refused(lambda: decode_result(data))
    if isinstance(conflicts, tuple):
        assert repr(decode_result(encode_result(conflicts))) == repr(conflicts)


def check_addresses(data: bytes) -> None:
    addresses = refused(lambda: decode_addresses(data))
    if isinstance(addresses, tuple):
        assert decode_addresses(encode_addresses(addresses)) == addresses


def make_candidates(mutator: Mutator) -> bytes:
    valid = [one.path.read_bytes() for one in examples() if one.name.startswith("Candidates")]
    return mutator.damaged(mutator.chance.choice(valid), valid)


def check_candidates(data: bytes) -> None:
    candidates = refused(lambda: decode_candidates(data))
    if isinstance(candidates, dict):
        assert NEVER not in candidates.values()
        assert decode_candidates(encode_candidates(candidates, "run")) == candidates


def make_headers() -> Callable[[Mutator], bytes]:
    """Return a function that makes damaged headers of commits in branches."""
    valid = [headers for headers, _ in messages("Commit") if not headers.keys().isdisjoint(HEADERS)]

    def make(mutator: Mutator) -> bytes:
        headers = dict(mutator.chance.choice(valid))
        for name in HEADERS:
            if mutator.often(0.5):
                given = mutator.chance.choice([one[name] for one in valid if name in one])
                words = [*given.split(" "), " ", "@", "main", "auto", "open", str(mutator.leaf())[:500]]
                headers[name] = mutator.text(given, words).replace("\r\n\r\n", "")
        return framed(headers, b"")

    return make


def check_headers(data: bytes) -> None:
    headers, _ = unframed(data)
    for read in (read_branch, read_source, lambda some: read_edited(some, 7)):
        refused(lambda read=read: read(headers))  # type: ignore[misc]
    assert read_protected(headers) in (True, False)
    assert is_deleted(headers) in (True, False)
    blobs = refused(lambda: read_blobs(headers))
    if isinstance(blobs, tuple):
        assert all(address.removeprefix(LIST).startswith("sha256:") for address in blobs)
