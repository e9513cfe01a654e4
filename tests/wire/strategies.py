"""Hypothesis strategies for everything that is stored or sent."""

import string

from hypothesis import strategies as st

from rebaser_core.branches.branch import Apply, Create, Rebase
from rebaser_core.commit import (
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
from rebaser_core.messages import (
    Conflict,
    Conflicts,
    DvuProgress,
    EnqueueUpdatesRequest,
    EnqueueUpdatesResponse,
    Failure,
    Success,
)
from rebaser_core.response import Sides
from rebaser_core.updates import Derive, Match, Recompute, Remove, Set, Unset, Update
from rebaser_core.values import INT64_MAX, INT64_MIN, Fault, Json

texts = st.text(max_size=12)
tokens = st.text(string.ascii_letters + string.digits + "_-", min_size=1, max_size=64)
value_ids = st.one_of(
    st.sampled_from(["a", "b", "cart/1/price", "straße", "😀", "two words"]),
    st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S")), min_size=1, max_size=20).filter(
        str.isprintable
    ),
)
naturals = st.integers(0, INT64_MAX)
addresses = st.binary(min_size=32, max_size=32).map(lambda raw: "sha256:" + raw.hex())

leaves: st.SearchStrategy[Json] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(INT64_MIN, INT64_MAX),
    st.floats(allow_nan=False, allow_infinity=False),
    texts,
)
json_values: st.SearchStrategy[Json] = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=8,
)

matches = st.builds(Match, value_ids | st.sampled_from(["*", "cart/*/price", "**"]))
# A pattern alone in a list is read as a pattern that is not in a list; both mean the same.
some_inputs = st.lists(value_ids | matches, max_size=3).map(tuple).filter(lambda some: list(map(type, some)) != [Match])
inputs = st.dictionaries(value_ids, value_ids | matches | some_inputs, max_size=3)
sets = st.builds(Set, value_ids, json_values)
derives = st.builds(
    Derive,
    value_ids,
    st.sampled_from(["sum", "cel", "x"]),
    inputs,
    st.dictionaries(texts, json_values, max_size=2),
)
updates: st.SearchStrategy[Update] = st.one_of(sets, derives, st.builds(Unset, value_ids), st.builds(Remove, value_ids))
update_tuples = st.lists(updates, max_size=4).map(tuple)

faults = st.builds(Fault, st.sampled_from(["cycle", "failed"]), texts, value_ids)
computed = st.one_of(st.builds(Computed, value_ids, json_values), st.builds(Computed, value_ids, st.none(), faults))

recomputes = st.builds(Recompute, st.none() | value_ids)
about = (st.just("") | st.text(max_size=128), st.just("") | st.text(max_size=1024), st.none() | naturals)
positions = st.integers(1, 2**63 - 1)
reverts = st.one_of(
    st.builds(lambda one, other: Reverts(min(one, other), max(one, other)), positions, positions),
    st.builds(lambda at, *rest: Reverts(at, at, *rest), positions, st.none() | tokens, st.none() | tokens),
)
creates = st.builds(Create, tokens, st.none() | naturals, st.none() | tokens, st.booleans()) | st.builds(
    Create, closed=st.booleans()
)
applies = st.builds(Apply, tokens, st.none() | naturals, st.booleans(), st.booleans(), st.booleans())
rebases = st.one_of(
    st.builds(Rebase, st.none() | naturals, st.none() | tokens, st.sampled_from(Strategy)),
    st.builds(Rebase, naturals, settles=naturals),
)
marks = st.builds(Marking, st.booleans()) | st.builds(
    Marking, st.none(), st.sampled_from([one for one in BranchStatus if one is not BranchStatus.CLOSED])
)
unseen = creates | rebases  # actions that cannot have `expect`
requests = st.one_of(
    st.builds(
        EnqueueUpdatesRequest,
        *(tokens, tokens, tokens, update_tuples, st.none(), st.none() | tokens, st.none() | recomputes),
        *about,
    ),
    st.builds(
        EnqueueUpdatesRequest,
        *(tokens, tokens, tokens, st.none(), addresses, st.none() | tokens, st.none() | recomputes),
        *about,
    ),
    st.builds(EnqueueUpdatesRequest, tokens, tokens, tokens, *[st.none()] * 4, *about, reverts | applies | marks),
    st.builds(EnqueueUpdatesRequest, tokens, tokens, tokens, *[st.none()] * 4, *about[:2], action=unseen),
)
requests_by_address = st.builds(EnqueueUpdatesRequest, tokens, tokens, tokens, st.none(), addresses, st.none() | tokens)
sides = st.builds(Sides, *[st.none() | updates] * 3)
conflicts = st.builds(Conflict, value_ids, texts, st.none() | sides)
statuses = st.one_of(
    st.builds(Success, naturals, naturals) | st.builds(Success, *[naturals] * 4),
    st.builds(Conflicts, texts, naturals, st.lists(conflicts, max_size=3).map(tuple)),
    st.builds(Failure, texts, texts, st.none() | naturals),
)
responses = st.builds(EnqueueUpdatesResponse, tokens | st.just(""), tokens, tokens, statuses)

progress = st.builds(
    DvuProgress,
    *(tokens, tokens, texts, naturals, naturals, st.none() | naturals),
    st.floats(0, 1e9, allow_nan=False),
)

decisions = st.builds(
    Decision,
    naturals,
    tokens | st.just("") | st.just("@7"),
    st.sampled_from(Outcome),
    naturals,
    texts,
    texts,
    naturals,
    naturals,
    position=st.just(0) | naturals,
    unresolved=st.just(0) | naturals,
    result=st.none() | st.builds(BlobRef, addresses, naturals),
)
applied = st.builds(Applied, texts, naturals)


blob_refs = st.builds(BlobRef, addresses, naturals)
rows = st.builds(TailRow, st.integers(1, INT64_MAX)) | st.builds(
    TailRow, st.integers(1, INT64_MAX), st.integers(1, 9), st.dictionaries(texts, json_values, max_size=4)
)
origins = st.builds(Origin, tokens, naturals, tokens, naturals, st.lists(rows, max_size=3).map(tuple)) | st.builds(
    Origin, tokens, naturals, tokens, naturals, st.just(()), blob_refs
)
summaries = st.builds(
    BranchSummary,
    *(
        tokens | st.just(""),
        naturals,
        st.sampled_from(BranchStatus),
        naturals,
        naturals,
        tokens | st.just(""),
        naturals,
        naturals,
    ),
)
statuses_of_branches = st.none() | st.sampled_from(BranchStatus)
created = st.fixed_dictionaries(
    {
        "origin": st.none() | origins,
        "status": statuses_of_branches,
        "carried": st.lists(st.builds(CarriedOutcome, decisions, naturals, naturals), max_size=3).map(tuple),
    }
)


@st.composite
def replays(draw: st.DrawFn) -> Replay:
    strategy, blob = draw(st.sampled_from(Strategy)), draw(st.none() | blob_refs)
    if blob is not None:
        return Replay(strategy=strategy, blob=blob)
    bases = draw(st.lists(updates, max_size=4, unique_by=lambda update: update.id))
    in_conflict = [update.id for update in bases if draw(st.booleans())]
    left: st.SearchStrategy[type[Remove | Unset]] = st.sampled_from((Remove, Unset))
    conflicts: list[Update] = [draw(left)(id_) for id_ in in_conflict]
    return Replay(tuple(bases), tuple(conflicts), strategy)


collections = st.builds(Collection, *[naturals] * 8, blob_refs)


@st.composite
def commits(draw: st.DrawFn) -> Commit:
    kind = draw(st.sampled_from(Kind))
    items: st.SearchStrategy[Computed] | st.SearchStrategy[Update] = computed if kind is Kind.DVU else updates
    still = kind in (Kind.CREATE, Kind.MARK, Kind.GC)  # commits of these kinds change no value
    blob = draw(st.none() | blob_refs) if not still else None
    requests = tuple(draw(st.lists(decisions, max_size=3)))
    authors = draw(st.sampled_from([0, len(requests)]))
    edits, replay = kind in (Kind.REBASE, Kind.REPLAY), kind is Kind.REPLAY
    before_blob = draw(st.none() | blob_refs) if edits else None
    before = draw(st.none() | update_tuples) if edits else None
    sources = st.builds(Source, tokens, naturals, st.just(value=False) if replay else st.booleans())
    return Commit(
        id=draw(tokens),
        previous=draw(naturals),
        kind=kind,
        at_ms=draw(naturals),
        owner=draw(texts),
        applied=draw(st.none() | applied),
        covers=draw(st.none() | naturals),
        requests=requests,
        delta=() if blob or still else tuple(draw(st.lists(items, max_size=4))),  # type: ignore[arg-type]
        delta_blob=blob,
        checkpoint=draw(st.none() | st.builds(CheckpointRef, addresses, naturals, naturals, st.none() | blob_refs)),
        attempt=draw(st.none() | st.builds(Attempt, naturals, naturals, naturals, naturals)),
        forget_before_ms=draw(naturals),
        recompute=tuple(draw(st.lists(recomputes, max_size=2))),
        debt=draw(naturals),
        before=() if before_blob else before,
        before_blob=before_blob,
        authors=tuple(draw(st.lists(st.builds(Authorship, texts, texts), min_size=authors, max_size=authors))),
        reverts=draw(st.none() | st.builds(Reverts, naturals, naturals, st.none() | tokens)),
        begin=0 if kind is Kind.CREATE else draw(naturals),
        source=draw(sources if replay else st.none() | sources) if edits else None,
        settled=tuple(draw(st.lists(value_ids, max_size=3, unique=True))) if kind is Kind.REBASE else (),
        replay=draw(replays()) if replay else None,
        marking=draw(marks) if kind is Kind.MARK else None,
        collection=draw(collections) if kind is Kind.GC else None,
        protected=draw(st.booleans()),
        edited=draw(st.none() | naturals),
        branch=draw(st.none() | summaries),
        blobs=tuple(draw(st.lists(addresses, max_size=3))),
        **(draw(created) if kind is Kind.CREATE else {"status": draw(statuses_of_branches)} if replay else {}),
    )
