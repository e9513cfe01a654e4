"""All settings of a server, read from command-line flags and from environment variables (`REBASER_…`).

The reference page of settings is generated from the descriptions of the fields.
"""

import os
import socket
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator

from rebaser import setting_rules
from rebaser.client_settings import ACCESS, ClientSettings, load
from rebaser_core.errors import ConfigError
from rebaser_core.history import Retention
from rebaser_core.streams.topology import TopologyOptions

DEFAULT_GC_EVERY = 86_400.0  # seconds between garbage collections if blobs are in NATS
Duration = Annotated[float, Field(allow_inf_nan=False, le=100 * 365 * 86_400)]  # as nanoseconds, it fits 64 bits


class Settings(ClientSettings):
    """The settings of a server. Times are in seconds, sizes in bytes.

    `Settings()` reads the environment; arguments take precedence over it.
    """

    spark: str = Field(
        "local[*]",
        repr=False,
        description="`local[*]` for the embedded Spark, or the URL of a Spark Connect server: sc://host:port, followed"
        " by ;token=… if it requires a token (then, give the URL as an environment variable).",
    )
    spark_driver_memory: str = Field("1g", description="Heap size of the embedded Spark's JVM.")
    scratch: Path | None = Field(None, description="Folder for the temporary files of Spark.")
    server_id: str = Field(
        default_factory=lambda: f"{socket.gethostname()[:40]}-{os.getpid()}",
        description="Name of this server; default: host name and process id.",
    )

    http: str | None = Field(
        None,
        description="Address HOST:PORT of the HTTP server for probes and metrics; without a host, 127.0.0.1; default:"
        " none.",
    )

    # Concurrency
    concurrency: int | None = Field(
        None,
        ge=1,
        le=100_000,
        description="Change sets that this server works on at once; default: as many as a third of the memory holds.",
    )
    overflow_pending: int | None = Field(
        None,
        ge=1,
        description="Act as a spare server: take change sets only while at least this many of them wait for a server.",
    )
    overflow_ack_pending: int | None = Field(
        None,
        ge=1,
        description="Act as a spare server: take change sets only while all servers together own at least this many.",
    )
    # With this small default, clients process the answers of one commit while the server prepares the next one.
    batch_max_requests: int = Field(32, ge=1, le=10_000, description="Maximum number of requests in one commit.")
    batch_max_bytes: int = Field(4 * 1024 * 1024, ge=1024, description="Maximum bytes of the requests in one commit.")

    # Times
    quiescent_period: float = Field(
        60.0,
        ge=0.05,  # otherwise, a change set could be released before NATS delivers its requests, again and again
        le=86_400,
        description="A server releases a change set after this time without requests and dependent values updates"
        " (DVUs).",
    )
    turn: Duration = Field(
        5.0, gt=0, description="After this time, a change set gives up its slot if others wait and all slots are taken."
    )
    # Other servers take over the change sets of a killed server within 10 s: the sum of this time, the time to
    # load a change set, and a reserve for delays of the machine.
    ack_wait: float = Field(
        6.0,
        ge=0.5,
        le=3600,
        description="If a server is silent for this long, other servers take over its change sets.",
    )
    ping_interval: float = Field(
        5.0,
        gt=0,
        le=3600,
        description="Interval of pings to NATS; after twice this time without an answer, the server connects again.",
    )
    wait_for_nats: float = Field(
        0.0,
        ge=0,
        le=86_400,
        description="How long a starting server waits for NATS; if NATS refuses the connection, the server exits.",
    )
    loop_blocked_after: float = Field(
        1.0, gt=0, le=3600, description="If code blocks the event loop for longer than this, its stack is logged."
    )
    sweep_interval: float = Field(
        10.0, ge=0.5, le=3600, description="Interval of sweeps, which find change sets that need a server and lack one."
    )
    retry_for: Duration = Field(
        30.0,
        ge=0,
        description="How long a request may block its change set if it has a newer version or an unavailable blob.",
    )
    max_attempts: int = Field(
        5, ge=1, description="Maximum number of attempts at a request that fails for an unknown reason."
    )
    max_deaths: int = Field(
        3,
        ge=1,
        le=100,
        description="After this many recorded attempts in which a server died or hung, a request is rejected, or a DVU"
        " is deferred. The first death does not count: attempts are recorded only after it.",
    )
    apply_timeout: Duration = Field(30.0, gt=0, description="How long reading one request may take.")
    retry_window: Duration = Field(
        900.0,
        ge=1,
        description="How long the outcome of a request is remembered, measured by the timestamps of later requests;"
        " clients repeat a request for up to 300 s.",
    )
    history_for: Duration = Field(
        7 * 86_400.0,
        ge=0,
        description="How long the history of a change set is kept; with 0, commits do not record what they replaced, so"
        " servers of the previous release can read everything that this release writes.",
    )
    history_bytes: int = Field(
        256 * 1024 * 1024,
        ge=0,
        description="Maximum size of the history of a change set, in bytes; beyond it, the oldest part is purged.",
    )
    closed_for: Duration = Field(
        30 * 86_400.0,
        ge=0,
        description="How long after its last commit a closed change set is deleted, unless it was closed when it was"
        " created; 0: never. It can be restored as long as its history is kept.",
    )
    gc_every: Duration | None = Field(
        None,
        ge=0,
        description="Interval of garbage collections, which delete the blobs that are no longer needed; 0: never;"
        " default: 86,400 if blobs are in NATS, otherwise 0, because another installation could use the same store.",
    )
    dvu_timeout: Duration = Field(
        600.0, gt=0, description="How long one DVU may take; a single Spark job may take half of it."
    )
    progress_every: float = Field(
        3.0, ge=0.1, le=3600, description="Interval at which a DVU reports its progress; a shorter DVU does not report."
    )
    shutdown_grace: Duration = Field(15.0, gt=0, description="How long a graceful shutdown may take.")

    # Streams
    create_streams: bool = Field(
        True,
        description="Whether servers create missing streams and update existing ones; if not, `rebaser init` does, and"
        " servers need no permission to do so.",
    )
    durability: Literal["memory", "fast", "safe"] | None = Field(
        None,
        description="Which failures the data survives; default: `fast` for new streams, no change to existing ones.",
    )
    replicas: int | None = Field(
        None, ge=1, le=5, description="Copies of each stream; default: as many as the durability needs."
    )
    # If one of the following settings is None, existing streams keep their own value, and new streams get a default.
    max_requests_per_change_set: int | None = Field(
        None, ge=1, description="Maximum number of waiting requests of one change set; 100,000 in a new stream."
    )
    requests_max_msgs: int | None = Field(
        None, ge=-1, description="Maximum number of waiting requests in total; -1: no limit."
    )
    requests_max_bytes: int | None = Field(
        None, ge=-1, description="Maximum size of all waiting requests, in bytes; -1: no limit."
    )
    requests_max_msg_size: int | None = Field(
        None, ge=-1, description="Maximum size of one request message with its headers, in bytes; -1: no limit."
    )
    commits_max_bytes: int | None = Field(
        None, ge=-1, description="Maximum size of all logs, in bytes; at the limit, requests wait; -1: no limit."
    )
    dlq_max_bytes: int | None = Field(
        None,
        ge=-1,
        description="Maximum size of all dead letters, in bytes; at the limit, dead requests stay queued;"
        " -1: no limit.",
    )
    dlq_max_age: Duration | None = Field(None, ge=0, description="NATS deletes dead letters after this time; 0: never.")
    blobs_max_bytes: int | None = Field(
        None,
        ge=-1,
        description="Maximum size of all blobs in NATS, in bytes; at the limit, large requests and checkpoints fail;"
        " -1: no limit.",
    )
    duplicate_window: Duration | None = Field(
        None,
        ge=0.1,
        description="NATS stores a request once if it is sent twice within this time; this only saves traffic.",
    )
    ack_sample: int | None = Field(None, ge=0, le=100, description="Percentage of task acks that NATS reports.")
    checkpoint_bytes: int = Field(
        2 * 1024 * 1024,
        ge=1024,
        description="A log gets a checkpoint when the commits since the last one have this weight in bytes: their size,"
        " 512 for each, and half a byte for each commit of other logs in between. Before a quiet change set is"
        " released, 1/32 of it suffices.",
    )

    # Traces, which the variables OTEL_… of OpenTelemetry turn on
    trace_ratio: float = Field(
        0.0, ge=0, le=1, description="Share of the requests without a trace for which the server begins a trace."
    )
    trace_per_second: int = Field(20, ge=0, description="Maximum number of requests that are recorded per second.")
    trace_slower_than: float = Field(
        1.0, ge=0, description="Requests that take longer than this, from storage to answer, are traced afterwards."
    )

    # Logging
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Lowest level that is logged.")
    log_format: Literal["auto", "console", "json"] = Field(
        "auto", description="Format of log events; `auto`: `console` on a terminal, `json` elsewhere."
    )

    _check_spark = field_validator("spark")(setting_rules.check_spark)
    _check_http = field_validator("http")(setting_rules.check_http)

    def check_server(self) -> None:
        """Raise `ConfigError` if clients could have replies sent to the inbox of this server."""
        if self.reply_prefix is not None and f"{self.inbox_prefix}.".startswith(f"{self.reply_prefix}."):
            raise ConfigError(
                f"the inbox prefix {self.inbox_prefix} begins with the reply prefix {self.reply_prefix}, so clients"
                " could have replies sent to the inbox of this server: set REBASER_INBOX_PREFIX to a prefix that begins"
                " differently"
            )

    def spark_shown(self) -> str:
        """Return the setting `spark` without its token, to show it."""
        return setting_rules.without_token(self.spark)

    def embedded(self, url: str) -> Self:
        """Return a copy for the embedded NATS at `url`, which requires no credentials and initially has no streams."""
        return self.model_copy(
            update=dict.fromkeys(ACCESS) | {"nats_tls_first": False, "nats_url": url, "create_streams": True}
        )

    def retention(self) -> Retention:
        """Return the maximum age and the maximum size of the history of a change set."""
        return Retention(int(self.history_for * 1000), self.history_bytes)

    def collection_interval(self) -> float:
        """Return the interval of garbage collections in seconds; 0 if there are none."""
        default = DEFAULT_GC_EVERY if self.blobs is None else 0.0
        return default if self.gc_every is None else self.gc_every

    def topology(self) -> TopologyOptions:
        """Return the settings that define streams and consumers."""
        return TopologyOptions(
            durability=self.durability,
            replicas=self.replicas,
            max_requests_per_change_set=self.max_requests_per_change_set,
            requests_max_msgs=self.requests_max_msgs,
            requests_max_bytes=self.requests_max_bytes,
            requests_max_msg_size=self.requests_max_msg_size,
            commits_max_bytes=self.commits_max_bytes,
            dlq_max_bytes=self.dlq_max_bytes,
            dlq_max_age=self.dlq_max_age,
            blobs_max_bytes=self.blobs_max_bytes,
            ack_sample=self.ack_sample,
            duplicate_window=self.duplicate_window,
            ack_wait=self.ack_wait,
            sweep_interval=self.sweep_interval,
        )


def load_settings(**given: object) -> Settings:
    """Return the settings. A value in `given` that is not None takes precedence over the environment, and the
    environment over the defaults.

    Raise `ConfigError` with a one-line message if a setting is invalid.
    """
    return load(Settings, given)
