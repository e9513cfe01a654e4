"""Messages in every variant that golden files hold, by the version that each needs."""

from dataclasses import replace
from typing import Any

from rebaser_core.branches.branch import Apply, Changed, Contested, Create, Rebase
from rebaser_core.commit import (
    PULL_ATTEMPT,
    Applied,
    Attempt,
    Authorship,
    BlobRef,
    BranchStatus,
    BranchSummary,
    CarriedOutcome,
    CheckpointRef,
    Collection,
    Commit,
    Computed,
    Decision,
    Kind,
    Marking,
    Origin,
    Outcome,
    Replay,
    Reverts,
    Source,
    Strategy,
    TailRow,
)
from rebaser_core.ids import RequestId
from rebaser_core.messages import (
    Conflict,
    Conflicts,
    DvuProgress,
    EnqueueUpdatesRequest,
    EnqueueUpdatesResponse,
    Failure,
    Success,
    copy_row,
    encode_commit,
)
from rebaser_core.response import Sides
from rebaser_core.updates import Derive, Match, Recompute, Remove, Set, Unset
from rebaser_core.values import Fault

WS, CS, BASE = "01J9Z6Q0W3X5Y7Z9A1B3C5D7E9", "01J9Z6Q0W4F2G4H6J8K0M2N4P6", "main"
ID = "01J9Z6Q0W5R1S3T5V7W9X1Y3Z5"
OWNER = "01J9Z6Q0W6A2B4C6D8E0F2G4H6"
ADDRESS = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
STREAM = "2026-01-02T03:04:05.678901234Z"
AT = 1_767_323_045_678
UPDATES = (
    Set("cart/1/price", 9.5),
    Set("cart/1/qty", 3),
    Set("flags", [True, False, None]),
    Set("limits", {"low": -(2**63), "high": 2**63 - 1, "tiny": 5e-324, "none": -0.0}),
    Set("straße/☃", 'tab\tquote"back\\slash 😀'),
    Derive("cart/total", "sum", {"values": ("cart/1/price", "cart/2/price")}, {}),
    Derive("cart/1/net", "cel", {"price": "cart/1/price", "vat": "vat"}, {"expr": "price / (1 + vat)"}),
    Unset("vat"),
    Remove("cart/3/price"),
)
MATCHES = (
    Derive("cart/total", "sum", {"values": Match("cart/*/price")}, {}),
    Derive("all", "object", {"first": "fee", "more": ("fee", Match("**/é x"), "cart/1/price", Match("[a]"))}, {"n": 1}),
    Remove("cart/3/price"),
)
COMPUTED = (
    Computed("cart/1/net", 7.98),
    Computed("cart/count", 2),
    Computed("cart/names", {"first": ["a", None]}),
    Computed("cart/nothing"),
    Computed("cart/total", None, Fault("missing_input", "cart/2/price does not exist", "cart/total")),
)
DECISIONS = (
    Decision(7, RequestId(ID), Outcome.SUCCESS, 9),
    Decision(8, RequestId("again"), Outcome.SUCCESS),
    Decision(9, RequestId("other"), Outcome.CONFLICTS, 0, "conflicts", "2 values differ: a, b"),
    Decision(11, RequestId("wrong"), Outcome.ERROR, 0, "unknown_change_set", "there is no change set 'x'"),
    Decision(12, RequestId("@12"), Outcome.DEAD, 0, "malformed", "no header X-CONTENT-TYPE"),
)


def request(
    updates: Any = None, address: str | None = None, base: str | None = None, recompute: Recompute | None = None
) -> EnqueueUpdatesRequest:
    return EnqueueUpdatesRequest(RequestId(ID), WS, CS, updates, address, base, recompute)


def response(status: Success | Conflicts | Failure) -> EnqueueUpdatesResponse:
    return EnqueueUpdatesResponse(RequestId(ID), WS, CS, status)


def edit(**fields: Any) -> Commit:
    """Return a commit that decides one request."""
    return Commit(ID, 41, Kind.REBASE, AT, OWNER, Applied(STREAM, 12), 40, DECISIONS[:1], debt=1, **fields)


def create(**fields: Any) -> Commit:
    """Return a commit that creates a change set."""
    return Commit(ID, 0, Kind.CREATE, AT, OWNER, Applied(STREAM, 12), 34, DECISIONS[1:2], **fields)


def replay(found: Replay, **fields: Any) -> Commit:
    """Return a commit that replays the target of a branch."""
    decision = replace(DECISIONS[0], position=38, unresolved=2)
    applied, source = Applied(STREAM, 12), Source(BASE, 38)
    return Commit(ID, 41, Kind.REPLAY, AT, OWNER, applied, 40, (decision,), replay=found, source=source, **fields)


def row(sequence: int, updates: Any) -> TailRow:
    commit = Commit(ID, sequence - 1, Kind.REBASE, AT, OWNER, Applied(STREAM, 12), 0, DECISIONS[:1], updates, before=())
    return copy_row(sequence, *encode_commit(commit))


REQUESTS = {
    1: {"address": request(address=ADDRESS), "from": request(address=ADDRESS, base=BASE)},
    2: {
        "inline": request(UPDATES),
        "empty": request(()),
        "address": request(address=ADDRESS),
        "from": request((Set("a", 1),), base=BASE),
    },
    3: {
        "recompute": request((), recompute=Recompute()),
        "recompute-function": request((Set("a", 1),), base=BASE, recompute=Recompute("company.rate")),
        "match": request(MATCHES),
        "recompute-address": request(address=ADDRESS, recompute=Recompute("sum")),
    },
    4: {
        "author": replace(request(UPDATES[:2]), author="ann ☃", message="dearer\nby far"),
        "expect": replace(request(address=ADDRESS, recompute=Recompute()), expect_at=41),
        "revert": replace(request(), author="ann", action=Reverts(30, 38)),
        "revert-request": replace(request(), action=Reverts(38, 38, RequestId("r1")), expect_at=40),
        "revert-of": replace(request(), action=Reverts(30, 38, of=BASE)),
        "create": replace(request(), author="ann", action=Create(BASE, 38, "trunk")),
        "create-empty": replace(request(), action=Create(closed=True)),
        "create-manual": replace(request(), action=Create(BASE, follows=False)),
        "apply": replace(request(), author="ann", action=Apply("ann", 38, strict=True, allow_stale=True)),
        "apply-now": replace(request(), expect_at=41, action=Apply("ann")),
        "apply-keep": replace(request(), action=Apply("ann", 38, keep=True)),
        "rebase": replace(request(), author="ann", action=Rebase()),
        "rebase-onto": replace(request(), action=Rebase(upto=38, onto="trunk", strategy=Strategy.THEIRS)),
        "rebase-settles": replace(request(), action=Rebase(upto=38, settles=36)),
        "mark": replace(request(), message="reviews only", action=Marking(protected=True)),
        "mark-status": replace(request(), message="no use", action=Marking(status=BranchStatus.ABANDONED)),
        "delete": replace(request(), action=Marking(status=BranchStatus.DELETED)),
    },
}


CONFLICTS = (
    Conflict("a", "edited again", Sides(Set("a", 1), Set("a", 1.0), None)),
    Conflict("b", "edited again", Sides(None, Unset("b"), MATCHES[0])),
    Conflict("c", "too large to show"),
)


RESPONSES = {
    1: {
        "success": response(Success(9, 42)),
        "conflicts": response(Conflicts("1 value differs", 42, (Conflict("a", "changed on both sides"),))),
        "conflicts-again": response(Conflicts("1 value differs", 42)),
        "error": response(Failure("malformed", "not CBOR that is read here", 42)),
        "error-not-in-log": EnqueueUpdatesResponse(RequestId(""), WS, CS, Failure("transient", "try again")),
    },
    2: {
        "applied": response(Success(9, 42, 36)),
        "rebased": response(Success(9, 42, 36, 2)),
        "conflicts": response(Conflicts("3 values differ", 42, CONFLICTS)),
    },
}


PROGRESS = {
    1: {
        "planning": DvuProgress(WS, CS, OWNER, 41, 0, None, 3.0),
        "working": DvuProgress(WS, CS, OWNER, 41, 1_200_000, 10_000_000, 12.5),
    }
}


OTHER = ADDRESS.replace("9f", "9e")
TAIL = (row(31, UPDATES), row(32, MATCHES), TailRow(35), row(36, ()))
CHANGES = {
    "a": Changed(None, Set("a", 1)),
    "b": Changed(Unset("b"), None),
    "c": Changed(Set("c", 1), Set("c", 1.0), Contested(Set("c", 2), 38)),
    "cart/total": Changed(UPDATES[5], Unset("cart/total"), Contested(None, 2**63 - 1)),
}
MATCH_CHANGES = {"cart/total": Changed(UPDATES[5], MATCHES[0])}
REPLAY = Replay((Set("a", 1), Unset("b"), Remove("c")), (Set("b", 2), Remove("a")), Strategy.OURS)


COMMITS = {
    1: {
        "first": Commit(ID, 0, Kind.REBASE, AT, OWNER, Applied(STREAM, 7), None, DECISIONS[:1], UPDATES[:1]),
        "rebase": Commit(
            ID,
            41,
            Kind.REBASE,
            AT,
            OWNER,
            Applied(STREAM, 12),
            40,
            DECISIONS,
            UPDATES,
            checkpoint=CheckpointRef(ADDRESS, 30, 123_456),
            forget_before_ms=AT - 3_600_000,
            debt=9,
        ),
        "blob": Commit(ID, 41, Kind.DVU, AT, OWNER, None, 40, delta_blob=BlobRef(ADDRESS, 2_000_000)),
        "dvu": Commit(ID, 41, Kind.DVU, AT, OWNER, Applied(STREAM, 12), 41, delta=COMPUTED),
        "attempt": Commit(ID, 41, Kind.ATTEMPT, AT, OWNER, None, 40, attempt=Attempt(13, 2, AT - 500), debt=1),
        "checkpoint": Commit(
            ID, 41, Kind.CHECKPOINT, AT, OWNER, Applied(STREAM, 12), 41, checkpoint=CheckpointRef(ADDRESS, 41, 123_456)
        ),
    },
    2: {
        "recompute": Commit(
            ID,
            41,
            Kind.REBASE,
            AT,
            OWNER,
            Applied(STREAM, 12),
            40,
            DECISIONS[1:2],
            recompute=(Recompute(), Recompute("company.rate")),
            debt=2,
        ),
        "match": Commit(ID, 41, Kind.REBASE, AT, OWNER, Applied(STREAM, 12), 40, DECISIONS[:1], delta=MATCHES, debt=1),
    },
    3: {
        "before": edit(delta=UPDATES[:3], before=(Set("cart/1/price", 9.0), Unset("flags"), *MATCHES[:1])),
        "nothing-before": edit(delta=UPDATES[:1], before=(), checkpoint=CheckpointRef(ADDRESS, 30, 123_456)),
        "before-blob": edit(delta_blob=BlobRef(ADDRESS, 2_000_000), before=(), before_blob=BlobRef(OTHER, 1_000)),
        "unknown-before": edit(delta=UPDATES[:1], authors=(Authorship("ann", "dearer ☃"),)),
        "reverts": edit(delta=UPDATES[:1], before=(), authors=(Authorship("", "wrong"),), reverts=Reverts(30, 38)),
        "reverts-request": edit(delta=UPDATES[:1], before=(), reverts=Reverts(38, 38, RequestId("r1"))),
        "reverts-of": edit(delta=UPDATES[:1], before=(), reverts=Reverts(38, 38, RequestId("r1"), BASE)),
        "applied": edit(delta=UPDATES[:1], before=(), source=Source("ann", 36), protected=True),
        "applied-kept": edit(delta=UPDATES[:1], before=(), source=Source("ann", 36, keep=True)),
        "settled": edit(delta=UPDATES[:2], before=(), settled=("cart/1/price", "straße/☃")),
        "decided-apply": replace(edit(), requests=(replace(DECISIONS[0], position=36),), before=()),
        "replay": replay(
            Replay((Set("a", 1), Unset("b"), Remove("c"), MATCHES[0]), (Set("b", 2), Remove("a"))),
            delta=UPDATES[:1],
            before=(Set("cart/1/price", 9.0),),
            branch=BranchSummary(BASE, 38, BranchStatus.OPEN, 4, 2, BASE, 20),
        ),
        "replay-theirs": replay(Replay(strategy=Strategy.THEIRS), delta=UPDATES, before=()),
        "replay-applied": replay(Replay(), before=(), edited=30, status=BranchStatus.APPLIED),
        "replay-blob": replay(
            Replay(strategy=Strategy.OURS, blob=BlobRef(ADDRESS, 2_000_000)), before=(), blobs=(ADDRESS,)
        ),
        "conflicts": replace(
            edit(before=()), requests=(replace(DECISIONS[2], result=BlobRef(ADDRESS, 1_234)),), blobs=(ADDRESS,)
        ),
        "mark": Commit(
            ID, 41, Kind.MARK, AT, OWNER, Applied(STREAM, 12), 40, DECISIONS[:1], marking=Marking(protected=True)
        ),
        "unmark": Commit(ID, 41, Kind.MARK, AT, OWNER, None, None, marking=Marking(protected=False), edited=7),
        "mark-status": Commit(
            *(ID, 41, Kind.MARK, AT, OWNER, None, None),
            marking=Marking(status=BranchStatus.APPLIED),
            edited=7,
            branch=BranchSummary("", 0, BranchStatus.APPLIED, 0, 0, "", 0),
        ),
        "gc": Commit(
            *(ID, 41, Kind.GC, AT, OWNER, None, None),
            collection=Collection(AT - 9, 86_400_000, 120, 7, 12_345, 2, 678, 1, BlobRef(ADDRESS, 4_820)),
            blobs=(ADDRESS,),
        ),
        "gc-first": Commit(
            *(ID, 0, Kind.GC, AT, OWNER, None, None),
            collection=Collection(AT - 9, 86_400_000, 0, 0, 0, 0, 0, 0, BlobRef(ADDRESS, 20)),
            blobs=(ADDRESS,),
        ),
        "deleted": Commit(
            *(ID, 41, Kind.MARK, AT, OWNER, Applied(STREAM, 12), None),
            checkpoint=CheckpointRef(ADDRESS, 41, 1_234),
            marking=Marking(status=BranchStatus.DELETED),
            edited=0,
            branch=BranchSummary(BASE, 20, BranchStatus.DELETED, 0, 0, BASE, 20, 21),
            blobs=(ADDRESS,),
        ),
        "create": create(
            origin=Origin(BASE, 36, BASE, 36, TAIL),
            checkpoint=CheckpointRef(ADDRESS, 30, 123_456),
            branch=BranchSummary(BASE, 36, BranchStatus.OPEN, 0, 0, BASE, 36),
            blobs=(ADDRESS, OTHER),
        ),
        "create-sibling": create(
            origin=Origin("ann", 36, BASE, 20, (), BlobRef(ADDRESS, 20_000)),
            status=BranchStatus.CLOSED,
            carried=(
                CarriedOutcome(DECISIONS[3], 5, AT - 9),
                CarriedOutcome(replace(DECISIONS[4], digest=b"12345678"), 6, AT),
            ),
            branch=BranchSummary(BASE, 20, BranchStatus.CLOSED, 3, 0, "ann", 36),
            blobs=("@" + ADDRESS,),
        ),
        "create-empty": create(branch=BranchSummary("", 0, BranchStatus.OPEN, 0, 0, "", 0)),
        "create-following": create(
            origin=Origin(BASE, 36, BASE, 36, follows=True),
            branch=BranchSummary(BASE, 36, BranchStatus.OPEN, 0, 0, BASE, 36, follows=True),
        ),
        "pull-attempt": Commit(
            *(ID, 41, Kind.ATTEMPT, AT, OWNER, Applied(STREAM, 12), 40),
            attempt=Attempt(PULL_ATTEMPT, 0, AT - 900, 2),
            branch=BranchSummary(BASE, 20, BranchStatus.OPEN, 3, 0, BASE, 20, 21, follows=True),
            edited=30,
        ),
        "in-branch": edit(
            delta=UPDATES[:1],
            before=(),
            checkpoint=CheckpointRef(ADDRESS, 30, 123_456, BlobRef(ADDRESS, 100)),
            branch=BranchSummary(BASE, 20, BranchStatus.OPEN, 3, 0, BASE, 20),
        ),
        "begin": edit(delta=UPDATES[:1], before=(), begin=41),
        "edited": replace(edit(), kind=Kind.CHECKPOINT, edited=40, blobs=(ADDRESS,), begin=41),
    },
}


REDRIVEN = (
    Decision(15, RequestId("back"), Outcome.SUCCESS, 2, redrive=1),
    Decision(16, RequestId("hopeless"), Outcome.DEAD, 0, "poison", "the server died", 3, 4),
)


COMMITS[1] |= {
    "redriven": Commit(ID, 41, Kind.REBASE, AT, OWNER, Applied(STREAM, 16), None, REDRIVEN, UPDATES[:2]),
    "trial": Commit(ID, 41, Kind.ATTEMPT, AT, OWNER, None, 40, attempt=Attempt(17, 0, AT - 500, 2)),
}
