"""Switches the metrics and traces of the owners in this process, for the benchmark `telemetry`."""

import sys
from collections.abc import Sequence
from typing import Any, Self
from unittest import mock
from weakref import WeakKeyDictionary

from rebaser.change_set import loading
from rebaser.change_set.log.commit_log import CommitLog
from rebaser.telemetry import feeds
from rebaser.telemetry.span_maker import Chosen, SpanMaker
from rebaser_client.jetstream import Message
from rebaser_core.messages.headers.traces import read_trace

# What to call instead of the functions that feed metrics, as far as requests call them.
OFF: dict[str, Any] = {
    "requests_answered": lambda *_: 0,
    "commit_appended": lambda *_: 0.0,
}


class Switch:
    """Switches the metrics and traces of the owners that are started within its context. Use it only while no request
    is in flight."""

    def __init__(self) -> None:
        self.recorded = 0  # number of requests that were recorded
        self._logs: WeakKeyDictionary[CommitLog, Any] = WeakKeyDictionary()  # with the `traces` of each
        fed = {name: getattr(feeds, name) for name in OFF}
        loaded = [module for name, module in sorted(sys.modules.items()) if name.startswith("rebaser.")]
        self._places = [
            (module, name, on) for module in loaded for name, on in fed.items() if getattr(module, name, None) is on
        ]
        self._committed = feeds.DebtClock.committed
        self._choose = SpanMaker.chosen
        self._load = loading.open_log
        self._open_log = mock.patch.object(loading, "open_log", self._opened)

    def __enter__(self) -> Self:
        self._open_log.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.set(metrics=True, traces=True)
        self._open_log.stop()

    async def _opened(self, *given: Any) -> CommitLog:
        log = await self._load(*given)
        self._logs[log] = log.traces
        return log

    def set(self, *, metrics: bool, traces: bool, recorded: int | None = None) -> None:
        """Switch both. If `recorded` is given, exactly this request of each batch is recorded, by its index; otherwise,
        the ratio of the server applies."""
        for module, name, on in self._places:
            setattr(module, name, on if metrics else OFF[name])
        feeds.DebtClock.committed = self._committed if metrics else lambda *_, **__: None  # type: ignore[method-assign]
        for log, known in self._logs.items():
            log.traces, log.spans = known if traces else None, None
        SpanMaker.chosen = self._choose  # type: ignore[method-assign]
        if recorded is not None:

            def chosen(maker: SpanMaker, messages: Sequence[Message], count: int) -> Chosen:
                self._choose(maker, messages, count)
                self.recorded += 1
                return [(recorded, read_trace(messages[recorded].headers))]

            SpanMaker.chosen = chosen  # type: ignore[assignment, method-assign]
