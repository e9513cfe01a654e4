"""The events of a run as lines: virtual time, process, event. Two runs of one seed have the same lines."""

import hashlib
from collections.abc import Callable


class Trace:
    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lines: list[tuple[float, str, str]] = []

    def __call__(self, who: str, what: str) -> None:
        self._lines.append((self._now(), who, what))

    def __len__(self) -> int:
        return len(self._lines)

    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.lines()).encode()).hexdigest()

    def lines(self, last: int | None = None) -> list[str]:
        shown = self._lines if last is None else self._lines[-last:]
        return [f"{at:10.4f} {who:<8} {what}" for at, who, what in shown]
