"""Counts log events in a processor that structlog calls before all others."""

import threading
from collections.abc import Callable, MutableMapping
from typing import Any

import structlog

from rebaser.telemetry.catalogue import (
    APPEND_RETRIES,
    BLOBS_MISSING,
    CODES,
    CONSUMER_RESETS,
    LOG_EVENTS,
    OTHER,
    OWNERS_FENCED,
    REPLIES_LOST,
    REQUESTS_DEAD,
    REQUESTS_HELD,
    SPARK_SESSIONS,
    STRANDED,
)
from rebaser.telemetry.events import EVENTS
from rebaser.telemetry.instruments import Counter
from rebaser_client.blobs import BlobMissing
from rebaser_client.nats.errors import NotAllowed

Fields = MutableMapping[str, Any]
LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_KNOWN, _CODES = frozenset(EVENTS), frozenset(CODES)


def _code(fields: Fields) -> str:
    code = fields.get("code")
    return code if isinstance(code, str) and code in _CODES else OTHER


def _decide(fields: Fields) -> str | None:
    return "decide" if fields.get("fenced") else None


# The label for a restart of an ordered consumer, by the first words of its reason. A label of None means that the
# reason is not a fault.
_RESETS = {
    "message ": "missed",
    "the server delivered": "missed",
    "the queue is full": "full",
    "heartbeats": "silent",
    "requests were not delivered": "silent",
    "reconnected": "reconnected",
    "the newest message of each subject": None,
}


def _reset(fields: Fields) -> str | None:
    reason = str(fields.get("reason", ""))
    return next((why for words, why in _RESETS.items() if reason.startswith(words)), OTHER)


def _session(fields: Fields) -> str | None:
    why = fields.get("session")
    return why if why in SPARK_SESSIONS.labels["why"] else None


# Events with their own counter, and a function that returns its label. If the label is None, the event is not counted.
COUNTED: dict[str, tuple[Counter, Callable[[Fields], str | None]]] = {
    "request_dead": (REQUESTS_DEAD, _code),
    "request_held": (REQUESTS_HELD, _code),
    "load_failed": (OWNERS_FENCED, _decide),
    "decide_failed": (OWNERS_FENCED, _decide),
    "consume_failed": (OWNERS_FENCED, _decide),
    "dvu_fenced": (OWNERS_FENCED, lambda _: "dvu"),
    "checkpoint_fenced": (OWNERS_FENCED, lambda _: "checkpoint"),
    "lease_lost": (OWNERS_FENCED, lambda _: "lease"),
    "append_refused": (APPEND_RETRIES, lambda _: "refused"),
    "append_unanswered": (APPEND_RETRIES, lambda _: "unanswered"),
    "reply_refused": (REPLIES_LOST, lambda _: "inbox"),
    "reply_failed": (REPLIES_LOST, lambda _: "send"),
    "ordered_reset": (CONSUMER_RESETS, _reset),
    "spark_ready": (SPARK_SESSIONS, _session),
}
# If one of these events reports that a blob is missing, a stored message refers to that blob.
READERS_OF_LOGS = ("load_failed", "dvu_failed")
_NOTHING: tuple[None, Callable[[Fields], None]] = (None, lambda _: None)
_lock = threading.Lock()  # needed because other threads log too


class EventCounter:
    """Counts events of level info and above. Drops events below the level `shown`, so that they are not logged."""

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
    """Count an event. Its name is the field `event` of `fields`."""
    event = fields["event"]
    known = isinstance(event, str) and (event, level) in _KNOWN
    counter, label_of = COUNTED[event] if known and event in COUNTED else _NOTHING
    label = label_of(fields)
    with _lock:
        LOG_EVENTS.add(1, event if known else OTHER, level)
        if fields.get("code") == NotAllowed.default_code:  # the caller logs what it could not do
            LOG_EVENTS.add(1, "nats_not_allowed", "error")
        if event in READERS_OF_LOGS and fields.get("code") == BlobMissing.default_code:
            BLOBS_MISSING.add(1)
        if counter is not None and label is not None:
            counter.add(1, label)
        if event == "stranded_change_sets" and isinstance(number := fields.get("count"), int):
            STRANDED.add(number)
