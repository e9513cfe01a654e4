"""Defines all metrics, each with its name, meaning and labels. A gauge also has a function that reads its state.

Times are in seconds, sizes in bytes. The code that feeds counters and histograms is in `feeds` and `log_events`.
"""

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rebaser import __version__
from rebaser.snapshot import PUT_OFF, STREAMS, Census, Snapshot
from rebaser.telemetry.events import EVENTS
from rebaser.telemetry.instruments import Counter, Histogram, Labels, Sample, combinations
from rebaser_core.commit import Outcome

PREFIX = "rebaser_"
OTHER = "other"  # the label value for everything that is not in a closed set
CODES = (
    "blob_corrupt", "blob_missing", "internal", "invalid_header", "invalid_id", "invalid_request", "invalid_update",
    "invalid_value", "malformed", "poison", "purged", "request_id_reused", "skipped", "too_deep", "too_large",
    "too_slow", "transient", "unknown_message_type", "unprocessable", "unsupported_content_type", "unsupported_version",
    "wrong_change_set", OTHER,
)  # fmt: skip
APPENDED = ("requests", "dvu", "checkpoint", "attempt", "pull")
ENDS = (
    "quiet", "yield", "handed_over", "queue_blocked", "transient", "shutdown", "fenced", "task_lost", "broken",
)  # fmt: skip
RESETS = ("missed", "full", "silent", "reconnected", OTHER)
JOB_RESULTS = ("done", "failed", "late", "worker_died", "session_lost", "stopped")
LANES = ("small", "large")
PHASES = ("loading", "active", "settling", "releasing", "rechecking")
UPDATE_STATES = ("idle", "owed", "running", "waiting", PUT_OFF)
LEVELS = ("info", "warning", "error")

FAST = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
SLOW = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
COUNTS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)


@dataclass(frozen=True, slots=True)
class Gauge:
    """A metric that reports a current state. `read` returns its value or, if the metric has labels, a mapping from the
    labels of each series to its value. The value of a series that is not in the mapping is 0.

    If a label has no listed values, the metric has only the series in the mapping.
    """

    name: str
    meaning: str
    read: Callable[[Snapshot, Census], float | Mapping[Labels, float]]
    labels: Mapping[str, Sequence[str]]
    kind = "gauge"

    def samples(self, snapshot: Snapshot, census: Census) -> list[Sample]:
        found = self.read(snapshot, census)
        values: Mapping[Labels, float] = found if isinstance(found, Mapping) else {(): found}
        listed = combinations(self.labels) if all(self.labels.values()) else values
        return [Sample(labels, values.get(labels, 0.0)) for labels in listed]


# -- counters and histograms -------------------------------------------------------------------------------------------

REQUESTS_DECIDED = Counter(
    "requests_decided_total", "Requests that were decided in a commit.", outcome=[outcome.value for outcome in Outcome]
)
REQUESTS_REPEATED = Counter(
    "requests_repeated_total", "Requests that had already been decided and were answered again."
)
REQUESTS_DEAD = Counter("requests_dead_total", "Requests that were copied to the dead letters.", code=CODES)
REQUESTS_HELD = Counter(
    "requests_held_total", "Failed attempts to decide a request, each of which is repeated.", code=CODES
)
QUEUE_SECONDS = Histogram(
    "request_queue_seconds",
    "Time from storing a request in NATS until an owner takes it. Clocks that differ by up to 2 s distort it.",
    FAST,
)
REQUEST_SECONDS = Histogram(
    "request_seconds",
    "Time from storing a request in NATS until its answer is sent. Clocks that differ by up to 2 s distort it.",
    FAST,
)
BATCH_REQUESTS = Histogram("batch_requests", "Requests decided in one commit.", COUNTS)
APPEND_SECONDS = Histogram(
    "append_seconds",
    "Time to append a commit to its log, including repeated attempts.",
    FAST[:13],
    kind=APPENDED,
)
COMMIT_BYTES = Counter(
    "commit_bytes_total",
    "Size of the appended commits: the part in their messages, and the part in blobs.",
    part=("inline", "blob"),
)
APPEND_RETRIES = Counter(
    "append_retries_total",
    "Repeated attempts to append a commit, because NATS did not answer, or refused temporarily.",
    why=("unanswered", "refused"),
)
REPLIES_LOST = Counter(
    "replies_lost_total",
    "Answers that were not sent, because the inbox is not allowed, or because sending failed.",
    why=("inbox", "send"),
)
LOAD_SECONDS = Histogram("load_seconds", "Time that an owner took to load a log.", FAST)
TASKS_REDELIVERED = Counter(
    "tasks_redelivered_total",
    "Owners that loaded a log for a redelivered task, which an earlier owner returned or failed to renew.",
)
OWNERSHIP_ENDED = Counter(
    "ownership_ended_total",
    "Owners that ended, by cause: nothing was left to do (quiet), a defect of Rebaser (broken), or other causes.",
    how=ENDS,
)
OWNERS_FENCED = Counter(
    "owners_fenced_total",
    "Owners that were fenced by another owner, and leases that were lost, by where the loss was noticed.",
    where=("decide", "dvu", "checkpoint", "lease"),
)
DVU_SECONDS = Histogram(
    "dvu_seconds", "Duration of a dependent values update.", SLOW, result=("done", "failed", "fenced", "cancelled")
)
DVU_STAGE_SECONDS = Histogram(
    "dvu_stage_seconds",
    "Duration of a stage of an update, for each wave of packets. The wait for a Spark job counts as spark.",
    SLOW,
    stage=("plan", "spark", "absorb"),
)
DVU_VALUES = Counter(
    "dvu_values_total",
    "Values that updates visited (reached), those whose results changed, and those whose new results are errors.",
    what=("reached", "changed", "errors"),
)
SPARK_JOBS = Counter(
    "spark_jobs_total",
    "Spark jobs that ended, by result. A failed job may be repeated.",
    lane=LANES,
    result=JOB_RESULTS,
)
SPARK_JOB_SECONDS = Histogram("spark_job_seconds", "Duration of a Spark job.", SLOW, lane=LANES)
SPARK_WAIT_SECONDS = Histogram(
    "spark_wait_seconds", "Time that the first caller of a Spark job waited until the job began.", FAST
)
SPARK_JOB_CALLERS = Histogram("spark_job_callers", "Updates that shared a Spark job.", COUNTS)
SPARK_BYTES = Counter(
    "spark_bytes_total",
    "Size of the packets sent to Spark and of the results received from Spark.",
    direction=("sent", "received"),
)
SPARK_SESSIONS = Counter(
    "spark_sessions_total",
    "Sessions with Spark: the first one, and replacements for sessions that had sent much data or were lost.",
    why=("first", "renewed", "lost"),
)
CHECKPOINT_SECONDS = Histogram("checkpoint_seconds", "Duration of a checkpoint, until its commit was appended.", SLOW)
CHECKPOINT_BYTES = Counter("checkpoint_bytes_total", "Size of the parts of checkpoints that were written.")
BLOB_SECONDS = Histogram(
    "blob_seconds", "Duration of an operation on the blob store.", FAST[:15], op=("put", "get", "has")
)
BLOB_BYTES = Counter("blob_bytes_total", "Size of the blobs that were written or read.", op=("put", "get"))
BLOB_ERRORS = Counter(
    "blob_errors_total",
    "Failed operations on the blob store; a missing blob does not count.",
    op=("put", "get", "has"),
)
BLOBS_MISSING = Counter(
    "blobs_missing_total",
    "Failed attempts to load a log, or to update derived values, because a blob is missing in the blob store.",
)
API_SECONDS = Histogram(
    "nats_api_seconds",
    "Duration of a call of the JetStream API, by result. Appends and deletes are not included.",
    FAST[:13],
    result=("done", "failed"),
)
CONSUMER_RESETS = Counter(
    "consumer_resets_total",
    "Restarts of log and queue readers that missed messages, were full, got nothing for too long, or lost NATS.",
    why=RESETS,
)
SWEEP_SECONDS = Histogram("sweep_seconds", "Duration of a sweep.", SLOW)
STRANDED = Counter("stranded_total", "Change sets with work but no task, which the sweeper found and woke.")
FRESHNESS_SECONDS = Histogram(
    "freshness_seconds",
    "Time from when an update became due, or its owner loaded the log, until an update was committed.",
    SLOW,
)
TRACES_LIMITED = Counter(
    "traces_limited_total",
    "Traces that did not begin because of a limit per second: of chosen requests, or of slow work.",
    why=("chosen", "slow"),
)
LOOP_LAG_SECONDS = Histogram("loop_lag_seconds", "Delay of a timer of the event loop.", FAST[:13])
LOG_EVENTS = Counter(
    "log_events_total",
    "Log events of level info and above, including those that --log-level hides.",
    only=[*EVENTS, *((OTHER, level) for level in LEVELS)],
    event=(),
    level=LEVELS,
)


_LANES = tuple((lane,) for lane in LANES)


# -- states ------------------------------------------------------------------------------------------------------------


def _streams(figure: str) -> Callable[[Snapshot, Census], Mapping[Labels, float]]:
    return lambda snapshot, _: {(kind,): getattr(usage, figure) for kind, usage in snapshot.streams.items()}


def _gauge(
    name: str, meaning: str, read: Callable[[Snapshot, Census], float | Mapping[Labels, float]], **labels: Sequence[str]
) -> Gauge:
    return Gauge(name, meaning, read, labels)


GAUGES = (
    _gauge(
        "build_info",
        "Always 1. The labels are the versions of Rebaser, Python and nats-server.",
        lambda seen, _: {(__version__, platform.python_version(), seen.nats_version): 1.0},
        version=(__version__,),
        python=(platform.python_version(),),
        nats=(),
    ),
    _gauge("ready", "Whether the server pulls tasks.", lambda seen, _: seen.stage == "serving"),
    _gauge("draining", "Whether the server is shutting down.", lambda seen, _: seen.stage == "draining"),
    _gauge("slots", "Maximum number of change sets that the server owns at once.", lambda seen, _: seen.slots),
    _gauge("slots_used", "Slots in use.", lambda seen, _: seen.slots_used),
    _gauge(
        "change_sets_owned",
        "Change sets that the server owns, by phase.",
        lambda _, census: {(phase,): number for phase, number in census.phases.items()},
        phase=PHASES,
    ),
    _gauge(
        "change_sets_dvu",
        "Change sets that the server owns, by the state of their update.",
        lambda _, census: {(state,): number for state, number in census.updates.items()},
        state=UPDATE_STATES,
    ),
    _gauge("tasks_held", "Tasks that the server holds but has no free slot for.", lambda seen, _: seen.tasks_held),
    _gauge("values_held", "Values of the change sets that the server owns.", lambda _, census: census.values),
    _gauge(
        "log_tail_bytes_max",
        "The largest weight of the commits after the newest checkpoint (see REBASER_CHECKPOINT_BYTES), of all logs that"
        " the server owns.",
        lambda _, census: census.tail_max,
    ),
    _gauge(
        "deletes_queued",
        "Requests that are decided, but not yet deleted from the stream.",
        lambda seen, _: seen.deletes_queued,
    ),
    _gauge(
        "debt_age_seconds_max",
        "The age of the oldest update that is due on this server.",
        lambda _, census: census.debt_age,
    ),
    _gauge(
        "dvu_silent_seconds_max",
        "The longest time for which Spark has processed no value of a running update; waiting for a Spark job counts.",
        lambda _, census: census.update_silent,
    ),
    _gauge(
        "append_age_seconds_max",
        "The time for which the oldest append in progress on this server has waited for NATS.",
        lambda _, census: census.append_age,
    ),
    _gauge(
        "lease_age_seconds", "Time since the last round of progress acks began.", lambda seen, _: seen.progress_silent
    ),
    _gauge(
        "ack_wait_seconds",
        "The lease age at which other servers may take over the change sets.",
        lambda seen, _: seen.ack_wait,
    ),
    _gauge("spark_up", "Whether Spark is ready.", lambda seen, _: seen.spark == "ready"),
    _gauge(
        "spark_calls_waiting",
        "Calls from updates that are waiting for a Spark job.",
        lambda seen, _: dict(zip(_LANES, seen.spark_load[0], strict=True)),
        lane=LANES,
    ),
    _gauge(
        "spark_jobs_running",
        "Spark jobs that are running.",
        lambda seen, _: dict(zip(_LANES, seen.spark_load[1], strict=True)),
        lane=LANES,
    ),
    _gauge(
        "nats_connected",
        "Whether there is a connection to NATS.",
        lambda seen, _: seen.stage != "connecting" and not seen.nats_away,
    ),
    _gauge("nats_rtt_seconds", "Duration of the last round trip to NATS.", lambda seen, _: seen.nats_rtt),
    _gauge(
        "nats_api_in_flight", "Calls of the JetStream API in flight, of at most 256.", lambda seen, _: seen.nats_calls
    ),
    _gauge(
        "clock_ahead_seconds",
        "Time by which the clock of the server is ahead of the clock of NATS. It is negative if the clock is behind.",
        lambda seen, _: seen.clock_ahead,
    ),
    _gauge("stream_messages", "Messages in a stream.", _streams("messages"), stream=STREAMS),
    _gauge("stream_bytes", "Size of a stream.", _streams("bytes"), stream=STREAMS),
    _gauge(
        "stream_full_ratio",
        "The used share of the stream limit that is closest to being reached.",
        _streams("full"),
        stream=STREAMS,
    ),
    _gauge(
        "stream_copies_behind",
        "Copies of a stream that are offline or have not caught up.",
        _streams("copies_behind"),
        stream=STREAMS,
    ),
    _gauge(
        "oldest_request_age_seconds",
        "The age of the oldest request that is not yet decided, or not yet deleted.",
        lambda seen, _: seen.oldest_request_age,
    ),
    _gauge("tasks_waiting", "Tasks that wait for a server.", lambda seen, _: seen.tasks_waiting),
    _gauge(
        "tasks_in_hand",
        "Tasks that servers hold, or that NATS will deliver after a delay.",
        lambda seen, _: seen.tasks_in_hand,
    ),
    _gauge("sweeper", "Whether the server is the sweeper.", lambda seen, _: seen.sweeper),
    _gauge(
        "last_sweep_timestamp_seconds",
        "Time of the last sweep (Unix time); 0 on servers other than the sweeper.",
        lambda seen, _: seen.sweep.at if seen.sweep else 0.0,
    ),
    _gauge(
        "change_sets_waiting",
        "Change sets with queued requests at the last sweep; 0 on servers other than the sweeper.",
        lambda seen, _: seen.sweep.waiting if seen.sweep else 0.0,
    ),
    _gauge(
        "change_sets_in_debt",
        "Change sets whose update was due at the last sweep; 0 on servers other than the sweeper.",
        lambda seen, _: seen.sweep.owing if seen.sweep else 0.0,
    ),
    _gauge(
        "oldest_debt_age_seconds",
        "The minimum age, at the last sweep, of the oldest update that was due, whether or not a server owns its change"
        " set; 0 on servers other than the sweeper.",
        lambda seen, _: seen.sweep.oldest_debt if seen.sweep else 0.0,
    ),
)
INSTRUMENTS = (
    REQUESTS_DECIDED, REQUESTS_REPEATED, REQUESTS_DEAD, REQUESTS_HELD, QUEUE_SECONDS, REQUEST_SECONDS, BATCH_REQUESTS,
    APPEND_SECONDS, COMMIT_BYTES, APPEND_RETRIES, REPLIES_LOST, LOAD_SECONDS, TASKS_REDELIVERED, OWNERSHIP_ENDED,
    OWNERS_FENCED, DVU_SECONDS, DVU_STAGE_SECONDS, DVU_VALUES, FRESHNESS_SECONDS, SPARK_JOBS, SPARK_JOB_SECONDS,
    SPARK_WAIT_SECONDS, SPARK_JOB_CALLERS, SPARK_BYTES, SPARK_SESSIONS, CHECKPOINT_SECONDS, CHECKPOINT_BYTES,
    BLOB_SECONDS, BLOB_BYTES, BLOB_ERRORS, BLOBS_MISSING, API_SECONDS, CONSUMER_RESETS, SWEEP_SECONDS, STRANDED,
    TRACES_LIMITED, LOOP_LAG_SECONDS, LOG_EVENTS,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Family:
    """A metric and its values at one moment. `bounds` is empty unless the metric is a histogram."""

    name: str
    kind: str
    meaning: str
    label_names: tuple[str, ...]
    samples: tuple[Sample, ...]
    bounds: tuple[float, ...] = ()


def read_all(snapshot: Snapshot, census: Census) -> list[Family]:
    """Return all metrics with their current values. The result shares nothing with the instruments, so any thread may
    use it."""
    families = []
    for row in (*INSTRUMENTS, *GAUGES):
        samples = row.samples(snapshot, census) if isinstance(row, Gauge) else row.samples()
        bounds = row.bounds if isinstance(row, Histogram) else ()
        families.append(Family(PREFIX + row.name, row.kind, row.meaning, tuple(row.labels), tuple(samples), bounds))
    return families
