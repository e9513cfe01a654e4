"""Builds and parses NATS subjects and stream names. No other module does this.

With the prefix `p`, streams have names such as `p_REBASER_REQUESTS`, and subjects begin with `p.rebaser.`.
"""

from dataclasses import dataclass
from functools import cached_property

from rebaser_core.errors import ConfigError, UnprocessableError
from rebaser_core.ids import ChangeSetKey, check_token


@dataclass(frozen=True)
class Subjects:
    """The subjects and stream names of one installation. `prefix` is a subject token, or empty.

    The constructor raises `ConfigError` if the prefix is not valid.
    """

    prefix: str = ""

    def __post_init__(self) -> None:
        if self.prefix:
            try:
                check_token(self.prefix, "prefix")
            except UnprocessableError as error:
                raise ConfigError(error.message) from None

    @cached_property
    def root(self) -> str:
        return f"{self.prefix}.rebaser" if self.prefix else "rebaser"

    def stream(self, name: str) -> str:
        """Return the name of a stream in this installation. `name` is its name without the prefix, for instance
        `REBASER_TASKS`."""
        return f"{self.prefix}_{name}" if self.prefix else name

    @cached_property
    def requests_stream(self) -> str:
        return self.stream("REBASER_REQUESTS")

    @cached_property
    def tasks_stream(self) -> str:
        return self.stream("REBASER_TASKS")

    @cached_property
    def commits_stream(self) -> str:
        return self.stream("REBASER_COMMITS")

    @cached_property
    def dlq_stream(self) -> str:
        return self.stream("REBASER_DLQ")

    @cached_property
    def blobs_bucket(self) -> str:
        return self.stream("REBASER_BLOBS")

    def requests(self, key: ChangeSetKey) -> str:
        return f"{self.root}.requests.{key.workspace}.{key.change_set}"

    def task(self, key: ChangeSetKey) -> str:
        return f"{self.root}.tasks.{key.workspace}.{key.change_set}.process"

    def commits(self, key: ChangeSetKey) -> str:
        return f"{self.root}.commits.{key.workspace}.{key.change_set}"

    def dlq(self, key: ChangeSetKey) -> str:
        return f"{self.root}.dlq.{key.workspace}.{key.change_set}"

    @cached_property
    def sweep_stream(self) -> str:
        return self.stream("REBASER_SWEEP")

    @cached_property
    def sweep(self) -> str:
        """The subject of the single sweep message. The server to which NATS delivers this message is the sweeper."""
        return f"{self.root}.sweep"

    @cached_property
    def sweep_before(self) -> str:
        """The subject that earlier releases used for the sweep message, which they stored in the stream of tasks."""
        return f"{self.root}.tasks.sweep"

    @cached_property
    def ping(self) -> str:
        """The core NATS subject for pings, to which every server replies with its identity."""
        return f"{self.root}.servers.ping"

    def progress(self, workspace: str, change_set: str) -> str:
        """Return the core NATS subject on which the progress of an update of derived values is published. Each of the
        two names may be the wildcard `*`."""
        return f"{self.root}.progress.{workspace}.{change_set}"

    def parse(self, subject: str) -> tuple[str, ChangeSetKey]:
        """Return the kind of `subject` (`requests`, `tasks`, `commits` or `dlq`) and the key of its change set.

        Raise `UnprocessableError` if `subject` has none of these kinds or does not belong to this installation.
        """
        head, _, rest = subject.partition(self.root + ".")
        parts = rest.split(".")
        if not head and len(parts) >= 3:
            kind, workspace, change_set, *tail = parts
            suffix = ["process"] if kind == "tasks" else []
            if kind in ("requests", "tasks", "commits", "dlq") and tail == suffix:
                make = ChangeSetKey.of if kind in ("requests", "tasks") else ChangeSetKey.of_any
                return kind, make(workspace, change_set)
        raise UnprocessableError(
            f"{subject[:120]!r} is not a subject of this installation, whose subjects begin with {self.root}.",
            code="invalid_subject",
        )
