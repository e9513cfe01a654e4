"""Parses the options of the data source, which `.option(…)` sets.

Invariant: no error message contains the value of an option that can be a secret.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from rebaser_client.jetstream import Access
from rebaser_client.log.positions import At, parse_at
from rebaser_core.errors import ConfigError, UnprocessableError
from rebaser_core.ids import ChangeSetKey, check_token

TABLES: Mapping[str, tuple[str, ...]] = {
    "values": ("at",),
    "commits": ("from", "to"),
    "change_sets": ("at",),
    "changes": ("at",),
    "conflicts": ("at",),
    "blobs": (),
    "references": (),
}
"""The names of the tables, with the options of `POSITIONS` that each table accepts. `registry` defines how each table
is read."""

WHOLE = ("blobs", "references")  # tables that cover all workspaces
MESSAGES = ("all", "commits", "queued")
POSITIONS = ("at", "from", "to")

_KNOWN = (
    "nats", "workspace", "changeSet", "table", "start", *POSITIONS, "partitions", "failOnDataLoss", "prefix", "blobs",
    "credentials", "token", "inboxPrefix", "messages", "nkey", "user", "password", "passwordFile", "tokenFile",
    "tlsCa", "tlsCert", "tlsKey", "tlsHostname", "tlsFirst", "domain",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The parsed options. `RebaserDataSource` describes them.

    `change_sets` is None for all change sets of the workspace. `start` is a log sequence, or None for "new". `at`,
    `from_` and `to` are None if they are not set; a table then shows the current state.
    """

    nats: str = field(repr=False)
    workspace: str
    change_sets: tuple[str, ...] | None
    table: str
    start: int | None
    at: At | None
    from_: At | None
    to: At | None
    partitions: int
    fail_on_data_loss: bool
    prefix: str
    blobs: str | None
    credentials: Path | None
    token: str | None = field(repr=False)
    inbox_prefix: str
    messages: str = "all"
    more_access: Access = field(default_factory=Access, repr=False)

    @classmethod
    def read(cls, raw: Mapping[str, str]) -> "SourceOptions":
        """Parse the options that Spark passes, whose names are case-insensitive. Raise `ConfigError` for an invalid
        option; the message lists the allowed values."""
        known = {name.lower(): name for name in _KNOWN}
        options: dict[str, str] = {}
        for name, value in raw.items():
            if name.lower() not in known:
                raise ConfigError(f"there is no option {name!r}: the data source has {', '.join(_KNOWN)}")
            options[known[name.lower()]] = value.strip()
        table = options.get("table", "values")
        if not options.get("workspace") and table not in WHOLE:
            raise ConfigError('the option "workspace" is missing: set it with .option("workspace", "…")')
        try:
            workspace = "" if table in WHOLE else check_token(options["workspace"], "workspace")
            names = [name.strip() for name in options.get("changeSet", "").split(",") if name.strip()]
            change_sets = tuple(dict.fromkeys(check_token(name, "change set") for name in names))
        except UnprocessableError as error:
            raise ConfigError(error.message) from None
        if table not in TABLES:
            *others, last = TABLES
            raise ConfigError(f"the option 'table' must be {', '.join(others)} or {last}, not {table[:40]!r}")
        positions = _positions(table, options)
        loss = options.get("failOnDataLoss", "true").lower()
        if loss not in ("true", "false"):
            raise ConfigError(f"the option 'failOnDataLoss' must be true or false, not {loss[:40]!r}")
        messages = options.get("messages", "all")
        if messages not in MESSAGES:
            raise ConfigError(f"the option 'messages' must be all, commits or queued, not {messages[:40]!r}")
        credentials = options.get("credentials")
        return cls(
            nats=options.get("nats", "nats://127.0.0.1:4222"),
            workspace=workspace,
            change_sets=change_sets or None,
            table=table,
            start=_start(options.get("start", "all")),
            at=positions.get("at"),
            from_=positions.get("from"),
            to=positions.get("to"),
            partitions=_number("partitions", options.get("partitions", "32"), minimum=1),
            fail_on_data_loss=loss == "true",
            prefix=options.get("prefix", ""),
            blobs=options.get("blobs") or None,
            credentials=Path(credentials) if credentials else None,
            token=options.get("token") or None,
            inbox_prefix=options.get("inboxPrefix", "_INBOX"),
            messages=messages,
            more_access=_access(options),
        )

    def access(self) -> Access:
        """Return the credentials and the TLS options for NATS."""
        return {**self.more_access, "creds": self.credentials, "token": self.token}

    def keys(self) -> list[ChangeSetKey] | None:
        """Return the change sets in the option `changeSet`; None means all change sets of the workspace."""
        return None if self.change_sets is None else [ChangeSetKey(self.workspace, name) for name in self.change_sets]


def _access(options: Mapping[str, str]) -> Access:
    def path(name: str) -> Path | None:
        return Path(options[name]) if options.get(name) else None

    return {
        "nkey": path("nkey"),
        "user": options.get("user") or None,
        "password": options.get("password") or None,
        "password_file": path("passwordFile"),
        "token_file": path("tokenFile"),
        "tls_ca": path("tlsCa"),
        "tls_cert": path("tlsCert"),
        "tls_key": path("tlsKey"),
        "tls_hostname": options.get("tlsHostname") or None,
        "tls_first": options.get("tlsFirst", "").lower() == "true" or None,
        "domain": options.get("domain") or None,
    }


def _positions(table: str, options: Mapping[str, str]) -> dict[str, At]:
    """Return the parsed options of `POSITIONS` that are set. An age counts back from the current time."""
    given = [name for name in POSITIONS if options.get(name)]
    for name in given:
        if name not in TABLES[table]:
            others = " and ".join(other for other, names in TABLES.items() if name in names)
            raise ConfigError(f"the table {table!r} has no option {name!r}, which is for {others}")
    if "from" in given and options.get("start", "all") != "all":
        raise ConfigError("the options 'from' and 'start' have the same meaning: set only one of them")
    now = datetime.now(UTC)
    found: dict[str, At] = {}
    for name in given:
        try:
            found[name] = parse_at(options[name], now)
        except UnprocessableError:
            raise ConfigError(
                f"the option {name!r} must be a log sequence (1234), an age (2h) or a time (2026-01-31T12:00Z), not"
                f" {options[name][:40]!r}"
            ) from None
    return found


def _start(text: str) -> int | None:
    if text in ("all", "new"):
        return 0 if text == "all" else None
    return _number("start", text, minimum=0, alternatives="all, new or ")


def _number(name: str, text: str, *, minimum: int, alternatives: str = "") -> int:
    if not (text.isascii() and text.isdigit()) or int(text) < minimum:
        raise ConfigError(
            f"the option {name!r} must be {alternatives}a number of at least {minimum}, not {text[:40]!r}"
        )
    return int(text)
