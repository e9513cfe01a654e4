"""Counts log events, as a processor of structlog in front of all others."""

import threading
from collections.abc import Callable, MutableMapping
from typing import Any

import structlog

from rebaser.telemetry.catalogue import CODES, LOG_EVENTS, OTHER, OWNERS_FENCED, REQUESTS_DEAD, REQUESTS_HELD
from rebaser.telemetry.events import EVENTS
from rebaser.telemetry.instruments import Counter

Fields = MutableMapping[str, Any]
LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_KNOWN, _CODES = frozenset(EVENTS), frozenset(CODES)


def _code(fields: Fields) -> str:
    code = fields.get("code")
    return code if isinstance(code, str) and code in _CODES else OTHER


# Events that have a counter of their own, with its label; None: this occurrence does not count.
COUNTED: dict[str, tuple[Counter, Callable[[Fields], str | None]]] = {
    "request_dead": (REQUESTS_DEAD, _code),
    "request_held": (REQUESTS_HELD, _code),
    "load_failed": (OWNERS_FENCED, lambda fields: "decide" if fields.get("fenced") else None),
    "decide_failed": (OWNERS_FENCED, lambda fields: "decide" if fields.get("fenced") else None),
    "consume_failed": (OWNERS_FENCED, lambda fields: "decide" if fields.get("fenced") else None),
    "dvu_fenced": (OWNERS_FENCED, lambda _: "dvu"),
    "checkpoint_fenced": (OWNERS_FENCED, lambda _: "checkpoint"),
    "lease_lost": (OWNERS_FENCED, lambda _: "lease"),
}
_NOTHING: tuple[None, Callable[[Fields], None]] = (None, lambda _: None)
_lock = threading.Lock()  # because threads also log


class EventCounter:
    """Counts each event, and drops those below the level `shown`, which are counted and not logged."""

    def __init__(self, shown: str) -> None:
        self._shown = LEVELS[shown]

    def __call__(self, _: object, method: str, fields: Fields) -> Fields:
        level = "error" if method not in LEVELS else method
        if level != "debug":
            count(fields, level)
        if LEVELS[level] < self._shown:
            raise structlog.DropEvent
        return fields


def count(fields: Fields, level: str) -> None:
    """Count one event; `fields` holds its name as `event`."""
    event = fields["event"]
    known = isinstance(event, str) and (event, level) in _KNOWN
    counter, label_of = COUNTED[event] if known and event in COUNTED else _NOTHING
    label = label_of(fields)
    with _lock:
        LOG_EVENTS.add(1, event if known else OTHER, level)
        if counter is not None and label is not None:
            counter.add(1, label)
