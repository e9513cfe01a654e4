"""Every setting of a server, read from flags and from the environment (`REBASER_…`). Data only, no behaviour."""

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from rebaser_core.errors import ConfigError
from rebaser_core.limits import COMMIT_LIMITS, Limits
from rebaser_core.topology import TopologyOptions

if TYPE_CHECKING:
    from rebaser_client.jetstream import Access

SMALLEST_LIMIT = 8
ACCESS = (
    "nats_creds", "nats_nkey", "nats_user", "nats_password", "nats_token",
    "nats_tls_ca", "nats_tls_cert", "nats_tls_key", "nats_tls_hostname",
)  # fmt: skip


class Settings(BaseSettings):
    """Times are seconds, sizes bytes. `Settings()` reads the environment; arguments win over it."""

    model_config = SettingsConfigDict(env_prefix="REBASER_", env_nested_delimiter="__", extra="ignore", frozen=True)

    # Where things are
    nats_url: str = Field(
        "nats://127.0.0.1:4222",
        repr=False,
        description="NATS server, or several separated by commas; tls:// wants TLS.",
    )
    nats_creds: Path | None = Field(None, description="NATS credentials file.")
    nats_nkey: Path | None = Field(None, description="File with the seed of an nkey.")
    nats_user: str | None = Field(None, description="NATS user.")
    nats_password: SecretStr | None = Field(None, description="Password of the NATS user.")
    nats_token: SecretStr | None = Field(None, description="NATS token.")
    nats_tls_ca: Path | None = Field(None, description="Who may sign NATS' certificate (PEM); default: as the system.")
    nats_tls_cert: Path | None = Field(None, description="Certificate to show to NATS (PEM).")
    nats_tls_key: Path | None = Field(None, description="Key of that certificate (PEM), unless it stands with it.")
    nats_tls_hostname: str | None = Field(None, description="Name in NATS' certificate, if it is not its address.")
    prefix: str = Field("", description="Put in front of every stream and subject name.")
    inbox_prefix: str = Field("_INBOX", description="Replies go nowhere else.")
    spark: str = Field("local[*]", description="`local[*]`, or a Spark Connect server: sc://host:port.")
    spark_driver_memory: str = Field("1g", description="Memory of the embedded Spark's JVM.")
    scratch: Path | None = Field(None, description="Folder for Spark's temporary files.")
    blobs: str | None = Field(None, description="Blob store: file://, s3://, gs:// or az://; default: in NATS.")
    server_id: str = Field(default_factory=lambda: f"{socket.gethostname()[:40]}-{os.getpid()}")

    # How much at once
    concurrency: int = Field(1000, ge=1, le=100_000, description="Change sets worked on at once.")
    overflow_pending: int | None = Field(
        None, ge=1, description="Help only while at least this many change sets wait for a server."
    )
    overflow_ack_pending: int | None = Field(
        None, ge=1, description="Help only while servers hold at least this many change sets."
    )
    # Small enough that a client works on the answers of one commit while the next is made.
    batch_max_requests: int = Field(32, ge=1, le=10_000, description="Requests in one commit, at most.")
    batch_max_bytes: int = Field(4 * 1024 * 1024, ge=1024, description="Bytes of requests in one commit, at most.")

    # When
    quiescent_period: float = Field(10.0, ge=0, le=86_400, description="Let an idle change set go after this long.")
    turn: float = Field(5.0, gt=0, description="When others wait and all slots are taken, an owner yields after this.")
    # A killed server's change sets are taken over within 10 s: this, the load, and what the machine is late.
    ack_wait: float = Field(6.0, ge=0.5, le=3600, description="A silent server's tasks go to another after this.")
    ping_interval: float = Field(
        5.0, gt=0, le=3600, description="A NATS server that answers nothing for twice this is given up."
    )
    loop_blocked_after: float = Field(
        1.0, gt=0, le=3600, description="What holds up a server's event loop for this long is logged with its stack."
    )
    sweep_interval: float = Field(
        10.0, ge=0.5, le=3600, description="Requests and updates that nobody owns are found within this."
    )
    retry_for: float = Field(
        30.0,
        ge=0,
        description="How long requests of a newer version, or whose blobs are away, may hold up their change set.",
    )
    max_attempts: int = Field(5, ge=1, description="Tries of a request that fails for an unknown reason.")
    max_deaths: int = Field(
        3,
        ge=1,
        le=100,
        description="A request is given up, a DVU put off, when so many servers that knew what they tried died or hung;"
        " one more came before them, unaware.",
    )
    apply_timeout: float = Field(30.0, gt=0, description="How long reading one request may take.")
    retry_window: float = Field(
        900.0, ge=1, description="How long the outcome of a request is remembered; clients repeat one for 300 s."
    )
    dvu_timeout: float = Field(600.0, gt=0, description="How long one DVU may take; half of it for one Spark job.")
    progress_every: float = Field(
        3.0, ge=0.1, le=3600, description="A DVU that takes longer tells how far it is, every so often."
    )
    shutdown_grace: float = Field(15.0, gt=0, description="How long a graceful shutdown may take.")

    # Streams
    durability: Literal["memory", "fast", "safe"] | None = Field(
        None, description="What data survives, see README; not given: `fast`, and existing streams stay as they are."
    )
    replicas: int | None = Field(None, ge=1, le=5, description="Copies of each stream; by default as durability needs.")
    # Not given, each of these leaves the streams as they are; deploy/docs/limits.md tells what new ones begin with.
    max_requests_per_change_set: int | None = Field(
        None, ge=1, description="Requests that may wait in one change set; 100,000 in a new stream."
    )
    requests_max_msgs: int | None = Field(
        None, ge=-1, description="Requests that may wait in all; -1: no limit, as below."
    )
    requests_max_bytes: int | None = Field(None, ge=-1, description="Bytes of requests that may wait in all.")
    requests_max_msg_size: int | None = Field(
        None, ge=-1, description="Bytes of one request message, its headers included."
    )
    commits_max_bytes: int | None = Field(None, ge=-1, description="Bytes of all logs; when it is full, requests wait.")
    dlq_max_bytes: int | None = Field(
        None, ge=-1, description="Bytes of all dead letters; when it is full, what is dead stays in its queue."
    )
    dlq_max_age: float | None = Field(
        None, ge=0, description="Dead letters are deleted after so many seconds; 0: never."
    )
    blobs_max_bytes: int | None = Field(
        None, ge=-1, description="Bytes of blobs in NATS; when it is full, large requests and checkpoints fail."
    )
    duplicate_window: float | None = Field(
        None, ge=0.1, description="A request sent twice within this is stored once; saves traffic, promises nothing."
    )
    ack_sample: int | None = Field(None, ge=0, le=100, description="Percent of task acks that NATS reports on.")
    checkpoint_bytes: int = Field(4 * 1024 * 1024, ge=1024, description="Smallest log tail that earns a checkpoint.")

    # Logging
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "console", "json"] = "auto"

    # Bounds on what a request may be, each a variable of its own: REBASER_LIMITS__MAX_DEPTH and so on.
    limits: Limits = Limits()

    @field_validator("limits", mode="before")
    @classmethod
    def _check_limits(cls, given: object) -> object:
        for name, value in given.items() if isinstance(given, dict) else ():
            most = getattr(COMMIT_LIMITS, name, None)
            if most is None:
                raise ValueError(f"there is no limit {name}")
            if not (str(value).isdecimal() and SMALLEST_LIMIT <= int(value) <= most):
                raise ValueError(f"{name} is a number from {SMALLEST_LIMIT} to {most}")
        return given

    def access(self) -> "Access":
        """Who we are to NATS, and whom we trust."""
        password, token = self.nats_password, self.nats_token
        return {
            "creds": self.nats_creds,
            "nkey": self.nats_nkey,
            "user": self.nats_user,
            "password": None if password is None else password.get_secret_value(),
            "token": None if token is None else token.get_secret_value(),
            "tls_ca": self.nats_tls_ca,
            "tls_cert": self.nats_tls_cert,
            "tls_key": self.nats_tls_key,
            "tls_hostname": self.nats_tls_hostname,
        }

    def embedded(self, url: str) -> Self:
        """The same with the embedded NATS at `url`, which asks nobody who they are."""
        return self.model_copy(update=dict.fromkeys(ACCESS) | {"nats_url": url})

    def topology(self) -> TopologyOptions:
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
    """Settings from `given` (None: not given) over the environment over defaults; raises `ConfigError` in one line."""
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
    except SettingsError as error:
        raise ConfigError(f"a setting in the environment cannot be read: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        name = "__".join(str(part) for part in first["loc"])
        raise ConfigError(f"setting {name} (REBASER_{name.upper()}): {first['msg']}") from None
