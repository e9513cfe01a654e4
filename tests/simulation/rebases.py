"""What the decision on a request to rebase a branch must be, and what its commit may say.

It knows nothing of the product's replay: it compares the books of the branch and its target.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rebaser_core.branches.branch import Changed, Rebase
from rebaser_core.commit import BranchStatus, Commit, Decision, Strategy
from rebaser_core.updates import Remove, Update
from tests.simulation.book import as_null

if TYPE_CHECKING:
    from tests.simulation.checker import Asked, History

SETTLES = "settle-"  # the ids of requests that servers send begin with this


@dataclass(frozen=True)
class Disputed:
    """A conflict: what both sides left (its text), and the commit that told it."""

    left: str
    told: int


def wrong_asked(histories: dict[Any, "History"], history: "History", asked: "Asked") -> str:
    """What is wrong with a request that nobody but a server sent; empty if nothing is."""
    action = None if asked.message is None else asked.message.action
    if not isinstance(action, Rebase) or action.settles is None or asked.request_id != f"{SETTLES}{action.upto}":
        return f"it asks for {action}"
    taken = (action.upto, history.key.change_set, action.settles)
    found = any(taken == take[:3] for one in histories.values() for take in one.all_takes)
    return "" if found else f"no commit {action.upto} applied {history.key} as of {action.settles}"


def wrong_replay(
    history: "History", target: "History", asked: "Asked", commit: Commit, sequence: int
) -> tuple[str, list[Update]]:
    """What is wrong with a `replay` commit, empty if nothing is; and the edits that it must have made.

    From then on, the books of `history` say what it found.
    """
    action, source, found, (name, base) = _action(asked), commit.source, commit.replay, history.target
    if source is None or found is None or found.strategy is not action.strategy:
        return f"it replays {source} as {found}", []
    reached = source.sequence
    if source.change_set != name:
        return f"it replays {source.change_set}, not {name}", []
    if reached < base or (action.upto is not None and reached > max(action.upto, base)):
        return f"it moves its base from {base} to {reached}", []
    older = [one for one in target.times if target.times[one] <= asked.at or action.upto is not None]
    if reached < max((one for one in older if action.upto is None or one <= action.upto), default=0):
        return f"it stops at {reached}, and {target.key} had more", []
    if target.birth > base:
        return f"{target.key} was created after the base {base}", []
    applied = [take for take in target.all_takes if base < take[0] <= reached and take[1] == history.key.change_set]
    applied = [take for take in applied if take[2] >= history.birth]
    done = bool(applied) and not applied[-1][3] and history.own <= applied[-1][2]
    if commit.status is not (BranchStatus.APPLIED if done else None):
        return f"its status becomes {commit.status}, own {history.own}, applied {applied[-1:]}", []
    wrong, edits = "", list[Update]()
    taken: list[Update] = sorted(map(as_null, commit.delta), key=lambda update: update.id)  # type: ignore[arg-type] # no results
    for agreed in _agreed(history, applied[-1][2] if applied else 0):
        edits, disputed = _compared(history, target, reached, found.strategy, agreed)
        told = {update.id: repr(None if isinstance(update, Remove) else as_null(update)) for update in found.conflicts}
        kept = {id_: one.left for id_, one in disputed.items() if id_ not in told}
        fresh = {id_: one.left for id_, one in disputed.items() if id_ in told}
        stale = {id_ for id_ in kept if history.disputes.get(id_) != disputed[id_]}
        wrong = "" if fresh == told and not stale else f"it tells of {told}, and {disputed} are in conflict"
        wrong = wrong or ("" if taken == edits else f"it takes {taken}, not {edits}")
        if not wrong:
            history.disputes = {
                id_: Disputed(one.left, sequence if id_ in told else one.told) for id_, one in disputed.items()
            }
            history.targets.append((sequence, (name, reached)))
            history.own = sequence if action.strategy is not Strategy.RECORD else history.own
            if done:
                history.statuses.append((sequence, BranchStatus.APPLIED))
            break
    return wrong, edits


def _action(asked: "Asked") -> Rebase:
    action = None if asked.message is None else asked.message.action
    assert isinstance(action, Rebase)
    return action


def _agreed(history: "History", applied: int) -> list[dict[str, str]]:
    """By id, what the branch had changed when it was applied. If its log is purged, only a part may be known."""
    if not applied:
        return [{}]
    here = history.book.as_of[applied]
    patch = history.patches[applied]
    whole = {id_: repr(here.get(id_)) for id_ in patch[0]}
    part = {id_: repr(here.get(id_)) for id_ in patch[1]}
    return [whole, part] if history.purged else [whole]


def _compared(
    history: "History", target: "History", reached: int, strategy: Strategy, agreed: dict[str, str]
) -> tuple[list[Update], dict[str, Disputed]]:
    """The edits that a replay makes, by id, and the conflicts behind it."""
    theirs, stood, here = target.book.as_of[reached], target.book.as_of[history.target[1]], history.book.definitions
    edits: list[Update] = []
    disputed = dict(history.disputes)
    for id_ in sorted({*theirs, *stood, *here, *disputed}):
        their, base, ours = (repr(book.get(id_)) for book in (theirs, stood, here))
        known = None if id_ in agreed else disputed.get(id_)
        if their == base and id_ not in disputed and id_ not in agreed:
            continue
        base = agreed.get(id_, base)
        left = base if known is None else known.left
        if their == ours:
            disputed.pop(id_, None)
        elif ours == left or (strategy is Strategy.THEIRS and (their != base or known)):
            edits.append(theirs.get(id_) or Remove(id_))
            disputed.pop(id_, None)
        elif strategy is Strategy.OURS or (id_ in agreed and their == base):
            disputed.pop(id_, None)
        elif their != base:
            disputed.pop(id_, None)
            if their != left:
                disputed[id_] = Disputed(left, 0)
    return edits, disputed


def wrong_rebase_refusal(history: "History", target: "History | None", asked: Rebase, decision: Decision) -> str:
    """Why a request to rebase may not have been refused like this; empty if it may."""
    match decision.code:
        case "deleted":
            return (
                "" if history.gone or (target is not None and target.gone) else "neither it nor its target is deleted"
            )
        case "closed":
            return "" if history.closed else "it is open"
        case "protected":
            return "" if history.protected else "it is not protected"
        case "not_a_branch":
            return "" if not history.target[0] else "it is a branch"
        case "moved":
            settled = asked.settles is not None and asked.settles < history.birth
            born = target is not None and target.birth > history.target[1]
            return "" if settled or born else "nothing moved"
        case "purged":
            return "" if asked.upto is not None else "it names no position"
    return f"nobody knows the code {decision.code}"


def wrong_settled(history: "History", commit: Commit, seen: set[str]) -> str:
    """What is wrong with the conflicts that a commit settles; `seen`: the ids edited by who saw what stood there."""
    expected = seen & history.disputes.keys()
    for id_ in expected:
        del history.disputes[id_]
    return "" if set(commit.settled) == expected else f"it settles {commit.settled}, not {sorted(expected)}"


def wrong_disputes(history: "History", sequence: int, changes: Mapping[str, Changed]) -> str:
    """What a checkpoint has otherwise of the conflicts as of log sequence `sequence`; empty if nothing."""
    told = {
        id_: Disputed(repr(one.contested.left and as_null(one.contested.left)), one.contested.told)
        for id_, one in changes.items()
        if one.contested is not None
    }
    expected = history.disputed_at[sequence]
    return "" if told == expected else f"{told} are in conflict, not {expected}"
