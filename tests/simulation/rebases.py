"""Checks the decisions on requests to rebase a branch, and the `replay` commits.

The checks do not use the product's replay: they compare the books of the branch and its target.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from rebaser_core.branches.branch import Changed, Rebase
from rebaser_core.commit import BranchStatus, Commit, Decision, Strategy
from rebaser_core.ids import ChangeSetKey
from rebaser_core.updates import Remove, Update
from tests.simulation.book import Definition, as_null

if TYPE_CHECKING:
    from tests.simulation.history import Asked, History

SETTLES = "settle-"  # prefix of the ids of requests that servers send
SETTLED_IN = 55.0  # virtual seconds for which a pull leaves an apply to the request of a server, at least
Histories: TypeAlias = "dict[ChangeSetKey, History]"


@dataclass(frozen=True)
class Disputed:
    """A conflict: the text of the definition that both sides replaced, and the commit that recorded the conflict."""

    left: str
    told: int


def wrong_asked(histories: dict[Any, "History"], history: "History", asked: "Asked") -> str:
    """Return what is wrong with a request that only a server may send; empty if nothing is."""
    action = None if asked.message is None else asked.message.action
    if not isinstance(action, Rebase) or action.settles is None or asked.request_id != f"{SETTLES}{action.upto}":
        return f"it asks for {action}"
    taken = (action.upto, history.key.change_set, action.settles)
    found = any(taken == take[:3] for one in histories.values() for take in one.all_takes)
    return "" if found else f"no commit {action.upto} applied {history.key} as of {action.settles}"


def applied_behind(history: "History", target: "History", reached: int) -> list[tuple[int, str, int, bool]]:
    """Return the commits of the target between the base and `reached` that applied the branch."""
    between = [take for take in target.all_takes if history.target[1] < take[0] <= reached]
    return [take for take in between if take[1] == history.key.change_set and take[2] >= history.birth]


def wrong_replay(
    histories: Histories, history: "History", action: Rebase, since: float, commit: Commit, sequence: int
) -> tuple[str, list[Update]]:
    """Return what is wrong with a `replay` commit (empty: nothing), and the edits that it must have made.

    The commit must contain what the target had at the time `since`. The books of `history` are changed accordingly.
    """
    source, found, (name, base) = commit.source, commit.replay, history.target
    if source is None or found is None or found.strategy is not action.strategy:
        return f"it replays {source} as {found}", []
    reached, old = source.sequence, histories[ChangeSetKey(history.key.workspace, name)]
    name = name if action.onto is None else action.onto
    target = histories[ChangeSetKey(history.key.workspace, name)]
    if source.change_set != name:
        return f"it replays {source.change_set}, not {name}", []
    if action.onto is None and (reached < base or (action.upto is not None and reached > max(action.upto, base))):
        return f"it moves its base from {base} to {reached}", []
    older = [one for one in target.times if target.times[one] <= since or action.settles is not None]
    if reached < max((one for one in older if action.upto is None or one <= action.upto), default=0):
        return f"it stops at {reached}, and {target.key} had more", []
    if target.birth > base and action.onto is None:
        return f"{target.key} was created after the base {base}", []
    if action.onto is not None and (old.target[0] != name or not old.closed):
        return f"the target of {old.key}, which is {old.status}, is {old.target[0]}, not {name}", []
    applied = [] if action.onto else applied_behind(history, target, reached)
    # The commit that applied the branch may have been purged before the owner could see it.
    unseen = bool(applied) and applied[-1][0] <= target.purged and commit.status is None
    done = bool(applied) and not unseen and not applied[-1][3] and history.own <= applied[-1][2]
    if commit.status is not (BranchStatus.APPLIED if done else None):
        return f"its status becomes {commit.status}, own {history.own}, applied {applied[-1:]}", []
    wrong, edits = "", list[Update]()
    taken: list[Update] = sorted(map(as_null, commit.delta), key=lambda update: update.id)  # type: ignore[arg-type] # no results
    possible = _agreed(history, applied[-1][2] if applied else 0)
    for agreed in [*possible, {}] if unseen else possible:
        stood = old.book.as_of[base]
        edits, disputed = _compared(history, stood, target.book.as_of[reached], found.strategy, agreed)
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


def wrong_pull(histories: Histories, history: "History", commit: Commit, now: float) -> str:
    """Return why this pull must not have brought the branch up to date; empty if it may."""
    if not history.follows:
        return "it does not follow its target"
    if history.status is not BranchStatus.OPEN or history.protected:
        return f"it is {history.status}, protected: {history.protected}"
    target = histories[ChangeSetKey(history.key.workspace, history.target[0])]
    reached, base = commit.source.sequence if commit.source else 0, history.target[1]
    if not any(base < edit <= reached for edit in target.edits_at):
        return f"its target was not edited between {base} and {reached}"
    known = [take[0] for take in applied_behind(history, target, reached) if take[0] > target.purged]
    late = [one for one in known if now - target.times[one] < SETTLED_IN and f"settle-{one}" not in history.outcomes]
    if late:
        return f"{late} applied it, and it was not yet asked to go on"
    loaded = history.loaded.get(commit.owner, 0.0)
    waiting = [
        one
        for one in history.asked.values()
        if one.at < loaded and one.sequence not in history.decided and one.request_id not in history.outcomes
    ]
    return f"it comes in front of {waiting[0].sequence}" if waiting else ""


def left_behind(histories: Histories, history: "History", outdated: float) -> str:
    """Return why an idle branch should contain the newest edit of its target, and does not; empty if nothing is wrong.

    `outdated` is when a deposed leader last answered a read.
    """
    if not history.follows or history.protected or history.status is not BranchStatus.OPEN:
        return ""
    name, base = history.target
    target = histories[ChangeSetKey(history.key.workspace, name)]
    if target.gone or target.birth > base or target.last_edit <= base:
        return ""
    loaded = max(history.loaded.values(), default=0.0)
    edited = target.times[target.last_edit]
    if edited >= loaded or history.birth not in history.times or history.times[history.birth] >= loaded:
        return ""
    if max(history.excused, outdated) >= loaded:
        return ""
    return f"{history.key} is at {base}, and {name} was edited at {target.last_edit}"


def _agreed(history: "History", applied: int) -> list[dict[str, str]]:
    """Return the changes that the branch had when it was applied, by id. If its log is purged, only some of them may be
    known, so there may be several possibilities."""
    if not applied:
        return [{}]
    here = history.book.as_of[applied]
    patch = history.patches[applied]
    whole = {id_: repr(here.get(id_)) for id_ in patch[0]}
    part = {id_: repr(here.get(id_)) for id_ in patch[1]}
    return [whole, part] if history.purged else [whole]


def _compared(
    history: "History",
    stood: dict[str, Definition],
    theirs: dict[str, Definition],
    strategy: Strategy,
    agreed: dict[str, str],
) -> tuple[list[Update], dict[str, Disputed]]:
    """Return the edits that a replay makes, by id, and the conflicts after it.

    `stood` has the definitions of the target at the base, `theirs` the present ones.
    """
    here = history.book.definitions
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
    """Return why it is wrong to refuse a request to rebase with this decision; empty if it is right."""
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
        case "not_its_target" | "target_is_open":
            return "" if asked.onto is not None else "it names no other target"
        case "self":
            return "" if asked.onto == history.key.change_set else "its target is another one"
        case "no_such_change_set":
            return "" if asked.onto is not None and (target is None or not target.times) else "its target exists"
        case "moved":
            settled = asked.settles is not None and asked.settles < history.birth
            born = target is not None and target.birth > history.target[1]
            return "" if settled or born else "nothing moved"
        case "purged":
            return "" if asked.upto is not None else "it names no position"
    return f"nobody knows the code {decision.code}"


def wrong_settled(history: "History", commit: Commit, seen: set[str]) -> str:
    """Return what is wrong with the conflicts that a commit settles. `seen` has the ids whose editor had seen the
    conflict."""
    expected = seen & history.disputes.keys()
    for id_ in expected:
        del history.disputes[id_]
    return "" if set(commit.settled) == expected else f"it settles {commit.settled}, not {sorted(expected)}"


def wrong_disputes(history: "History", sequence: int, changes: Mapping[str, Changed]) -> str:
    """Return what is wrong with the conflicts in a checkpoint as of log sequence `sequence`; empty if nothing is."""
    told = {
        id_: Disputed(repr(one.contested.base and as_null(one.contested.base)), one.contested.recorded_at)
        for id_, one in changes.items()
        if one.contested is not None
    }
    expected = history.disputed_at[sequence]
    return "" if told == expected else f"{told} are in conflict, not {expected}"
