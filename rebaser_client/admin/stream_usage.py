"""Reads the usage, the limits and the durability of the streams, and the size of a message in storage."""

import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rebaser_client.jetstream import ApiError, JetStream, StreamInfo
from rebaser_client.jetstream.errors import NO_MESSAGE
from rebaser_client.nats.errors import NotAllowed
from rebaser_client.nats.messages import as_int
from rebaser_core.errors import RebaserError
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import NANOS, SAFE_COPIES, TASKS_CONSUMER, Durability

# Bytes that nats-server adds to the subject, headers and payload of a stored message (filestore.go, memstore.go).
RECORD = {"file": 30, "memory": 16}
HEADERS_LENGTH = 4  # bytes added to a message with headers in file storage


@dataclass(frozen=True, slots=True)
class MessageCost:
    """The bytes that a message takes in each copy of a stream. The storage adds `record` bytes to each message."""

    payload: int
    headers: int
    subject: int
    record: int

    @property
    def stored(self) -> int:
        return self.payload + self.headers + self.subject + self.record


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """The usage and the limits of a stream. Sizes are in bytes, and count one copy only. A limit of -1 means no limit.

    - `copies_behind`: the number of copies that are offline or have not caught up.
    - `percent_full`: the used percentage of the limit that is closest to being reached; None without limits.
    - `newest`: the size of the newest message; None if there is no message, or if the client may not read it.
    - `retention`: the NATS policy that determines when messages are removed. `discard`: the NATS policy that determines
      whether a full stream removes old messages or refuses new ones.
    - `max_age`: seconds after which messages expire; 0 means never. `duplicate_window`: the length of the duplicate
      window in seconds; 0 means that there is none.
    """

    name: str
    storage: str
    copies: int
    copies_behind: int
    messages: int
    bytes: int
    max_messages: int
    max_bytes: int
    max_message_size: int
    percent_full: float | None
    bytes_per_message: float | None
    newest: MessageCost | None
    retention: str = ""
    discard: str = ""
    max_age: float = 0.0
    max_messages_per_subject: int = -1
    duplicate_window: float = 0.0


@dataclass(frozen=True, slots=True)
class TasksStatus:
    """The state of the consumer from which all servers pull tasks.

    - `pending`: the number of tasks that were not delivered to any server yet. `in_flight`: the number of tasks that
      servers hold, or have returned to be redelivered later.
    - `redelivered`: the number of tasks in flight that were delivered more than once.
    - `waiting_pulls`: the number of pull requests from servers with free slots.
    - `ack_floor`: the stream sequence up to which all tasks are done.
    - `ack_wait`: the seconds after which NATS redelivers a task without an ack.
    """

    pending: int
    in_flight: int
    redelivered: int
    waiting_pulls: int
    ack_floor: int
    ack_wait: float


@dataclass(frozen=True, slots=True)
class DurabilityStatus:
    """The durability of the streams. `storage` and `copies` are the weakest storage and the fewest copies of all
    streams.

    The actual durability may be higher than `at_least`, but a client cannot find that out. For example, one copy on
    disk counts as `fast`. It would be `safe` if nats-server synced every write, but NATS does not tell clients its
    setting `sync_interval`.
    """

    at_least: Durability
    storage: str
    copies: int


async def read_streams(js: JetStream, subjects: Subjects) -> list[StreamStatus]:
    """Return the existing streams, except those whose description or newest message cannot be read."""
    names = (
        subjects.requests_stream,
        subjects.tasks_stream,
        subjects.sweep_stream,
        subjects.commits_stream,
        subjects.dlq_stream,
        f"OBJ_{subjects.blobs_bucket}",
    )
    streams = []
    for name in names:
        try:
            answer = await js.call(f"STREAM.INFO.{name}")
            streams.append(_status(answer, await _newest_cost(js, StreamInfo.of(answer))))
        except RebaserError:
            continue
    return streams


async def read_tasks(js: JetStream, subjects: Subjects) -> TasksStatus | None:
    """Return the state of the tasks consumer; None if it cannot be read, for instance because it does not exist."""
    try:
        info = await js.consumer_info(subjects.tasks_stream, TASKS_CONSUMER)
    except RebaserError:
        return None
    return TasksStatus(
        pending=info.num_pending,
        in_flight=info.num_ack_pending,
        redelivered=info.num_redelivered,
        waiting_pulls=info.num_waiting,
        ack_floor=info.ack_floor_stream,
        ack_wait=as_int(info.config.get("ack_wait")) / NANOS,
    )


def durability_of(streams: Sequence[StreamStatus]) -> DurabilityStatus | None:
    """Return the durability of `streams`; None if `streams` is empty."""
    if not streams:
        return None
    copies = min(stream.copies for stream in streams)
    if any(stream.storage == "memory" for stream in streams):
        return DurabilityStatus("memory", "memory", copies)
    return DurabilityStatus("safe" if copies >= SAFE_COPIES else "fast", "file", copies)


def _status(answer: Mapping[str, Any], newest: MessageCost | None) -> StreamStatus:
    info = StreamInfo.of(answer)
    config = info.config
    max_messages, max_bytes = (as_int(config.get(name)) or -1 for name in ("max_msgs", "max_bytes"))
    used = [
        100 * value / limit for value, limit in ((info.messages, max_messages), (info.bytes, max_bytes)) if limit > 0
    ]
    return StreamStatus(
        name=info.name,
        storage=str(config.get("storage", "")),
        copies=as_int(config.get("num_replicas")),
        copies_behind=info.copies_behind,
        messages=info.messages,
        bytes=info.bytes,
        max_messages=max_messages,
        max_bytes=max_bytes,
        max_message_size=as_int(config.get("max_msg_size")) or -1,
        percent_full=round(max(used), 1) if used else None,
        bytes_per_message=round(info.bytes / info.messages, 1) if info.messages else None,
        newest=newest,
        retention=str(config.get("retention", "")),
        discard=str(config.get("discard", "")),
        max_age=as_int(config.get("max_age")) / NANOS,
        max_messages_per_subject=as_int(config.get("max_msgs_per_subject")) or -1,
        duplicate_window=as_int(config.get("duplicate_window")) / NANOS,
    )


async def _newest_cost(js: JetStream, info: StreamInfo) -> MessageCost | None:
    if not info.messages:
        return None
    try:
        stored = (await js.call(f"STREAM.MSG.GET.{info.name}", {"seq": info.last_sequence}))["message"]
    except NotAllowed:
        return None
    except ApiError as error:
        if error.err_code == NO_MESSAGE:
            return None  # the message was deleted meanwhile, as requests usually are
        raise
    headers = len(binascii.a2b_base64(stored.get("hdrs", "")))
    record = RECORD[info.config["storage"]]
    if headers and info.config["storage"] == "file":
        record += HEADERS_LENGTH
    return MessageCost(len(binascii.a2b_base64(stored.get("data", ""))), headers, len(stored["subject"]), record)
