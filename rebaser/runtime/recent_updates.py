"""Keeps how long the stages of recent updates took, for the console."""

from collections import OrderedDict, deque
from collections.abc import Mapping

from rebaser_core.ids import ChangeSetKey

MAX_UPDATES = 20  # maximum number of updates that are kept of a change set
MAX_CHANGE_SETS = 1000  # maximum number of change sets whose updates are kept; those updated most recently are kept


class RecentUpdates:
    """The newest updates that this server has committed, by change set.

    The owner of a quiet change set ends soon after an update. Therefore, the server keeps them, not the owner.
    """

    def __init__(self) -> None:
        self._of: OrderedDict[ChangeSetKey, deque[dict[str, object]]] = OrderedDict()

    def add(self, key: ChangeSetKey, sequence: int, stages: Mapping[str, float]) -> None:
        """Record an update of the change set `key`, which was committed at the log sequence `sequence`. `stages` has
        the duration of each stage in seconds, by its name."""
        kept = self._of.setdefault(key, deque(maxlen=MAX_UPDATES))
        kept.append({"commit": sequence, "stages": {name: round(seconds, 6) for name, seconds in stages.items()}})
        self._of.move_to_end(key)
        if len(self._of) > MAX_CHANGE_SETS:
            self._of.popitem(last=False)

    def of(self, key: ChangeSetKey) -> list[dict[str, object]]:
        """Return the updates of the change set `key`, the oldest first, with the field names of
        `rebaser_core.explain.facts.UpdateTimes`."""
        return list(self._of.get(key, ()))
