"""Drafts commits that follow the state of an owner."""

from collections.abc import Callable, Sequence
from typing import Any

from rebaser.change_set.known_functions import missing_functions
from rebaser.change_set.log.branch_fields import about_branch
from rebaser_client.cooperative import cooperate
from rebaser_core import thresholds
from rebaser_core.commit import Commit, Kind
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.updates import Update

# The ms after which outcomes are forgotten again; `Outcomes.forget` says why not more often.
FORGET_EVERY = 1000


class CommitDrafter:
    """A base class that drafts commits of the server `owner`, which follow `state`.

    `history` tells whether commits record the definitions that they replace. Outcomes are remembered for `retry_window`
    seconds. `now_ms` returns Unix ms, `new_id` a ULID.
    """

    def __init__(
        self,
        state: ChangeSetState,
        owner: str,
        *,
        retry_window: float,
        history: bool,
        now_ms: Callable[[], int],
        new_id: Callable[[], str],
    ) -> None:
        self.state = state
        self.history = history
        self._owner = owner
        self._retry_window_ms = int(retry_window * 1000)
        self._now_ms = now_ms
        self._new_id = new_id

    def draft(self, kind: Kind, *, stored_ms: int = 0, state: ChangeSetState | None = None, **fields: Any) -> Commit:
        """Return a commit that follows the current state; `fields` are the fields of `Commit` that its kind needs.
        `state` is the state after the commit, if the commit replaces the current state.
        `stored_ms` is the time at which NATS stored the last request that the commit decides (Unix ms). The time of the
        commit is never earlier than that. Outcomes are forgotten according to `stored_ms`, never according to the clock
        of a server. So if a request was stored twice, the first outcome is still known when the second copy is decided.
        """
        state = state or self.state
        checkpoint = fields.pop("checkpoint", state.checkpoint)
        about = about_branch(state, kind, checkpoint, fields)
        id_, at_ms, owner, forget_before_ms = self.stamp(stored_ms)
        return Commit(
            id=id_,
            previous=self.state.last,
            kind=kind,
            at_ms=at_ms,
            owner=owner,
            applied=fields.pop("applied", state.applied),
            covers=fields.pop("covers", state.covers if state.owes else None),
            checkpoint=checkpoint,
            forget_before_ms=forget_before_ms,
            unknown=fields.pop("unknown", None) or missing_functions(state),
            **(about | fields if about else fields),
        )

    def stamp(self, stored_ms: int) -> tuple[str, int, str, int]:
        """Return `id`, `at_ms`, `owner` and `forget_before_ms` of a commit; see `draft`."""
        now, before = self._now_ms(), (stored_ms - self._retry_window_ms) // FORGET_EVERY * FORGET_EVERY
        at_ms = now if now > stored_ms else stored_ms  # noqa: FURB136 - `max` takes as long as the rest of this method
        return self._new_id(), at_ms, self._owner, before if before > 0 else 0  # noqa: FURB136

    async def before(self, delta: Sequence[Update]) -> tuple[Update, ...] | None:
        """Return the definitions that `delta` is about to replace; None if commits do not record them. The caller must
        hold `append_lock`."""
        edit_of, step = self.state.cells.edit_of, thresholds.now.overlay_merge_step
        if len(delta) <= step or not self.history:
            return self.before_now(delta)
        ids, replaced = list({edit.id: None for edit in delta}), list[Update]()
        for start in range(0, len(ids), step):
            if start:
                await cooperate()
            replaced += [edit for id_ in ids[start : start + step] if (edit := edit_of(id_)) is not None]
        return tuple(replaced)

    def before_now(self, delta: Sequence[Update]) -> tuple[Update, ...] | None:
        """Do the same as `before`, without letting other tasks run. `delta` should be small."""
        if not self.history:
            return None
        edit_of = self.state.cells.edit_of
        if len(delta) == 1:  # most deltas
            return () if (only := edit_of(delta[0].id)) is None else (only,)
        ids = {edit.id: None for edit in delta}
        return tuple([edit for id_ in ids if (edit := edit_of(id_)) is not None])
