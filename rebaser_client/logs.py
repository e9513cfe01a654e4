"""Sends the log events of `rebaser_client` to the logging system that the application configured. If the application
did not configure logging, the events are dropped.

If the application configured structlog, events go to structlog, with their fields. Otherwise, events go to the standard
`logging`, one line for each event, under the logger `rebaser_client`. The log record has the event and its fields as
the attributes `event` and `fields`.

Invariant: this module does not import structlog, because that takes longer than importing the rest of the client. An
application that has not imported structlog cannot have configured it.
"""

import logging
import sys
from typing import Any, Self

from rebaser_core.ids import ChangeSetKey

# Without a handler, the standard library would write warnings to stderr.
logging.getLogger("rebaser_client").addHandler(logging.NullHandler())


class Logger:
    """The logger of one module. An event consists of a short name and fields."""

    __slots__ = ("_fields", "_name", "_plain", "_structured")

    def __init__(self, name: str, **fields: Any) -> None:
        self._name = name
        self._fields = fields
        self._plain = logging.getLogger(name)
        self._structured: Any = None

    def bind(self, **fields: Any) -> Self:
        """Return a logger that adds `fields` to each event."""
        return type(self)(self._name, **self._fields, **fields)

    def for_change_set(self, key: ChangeSetKey) -> Self:
        """Return a logger that adds the workspace and the change set to each event."""
        return self.bind(workspace=key.workspace, change_set=key.change_set)

    def debug(self, event: str, **fields: Any) -> None:
        self._emit(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: Any) -> None:
        self._emit(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._emit(logging.WARNING, event, fields)

    def error(self, event: str, **fields: Any) -> None:
        self._emit(logging.ERROR, event, fields)

    def exception(self, event: str, **fields: Any) -> None:
        """Log an error with the traceback of the exception that is being handled."""
        self._emit(logging.ERROR, event, fields, exc_info=True)

    def log(self, level: int, event: str, **fields: Any) -> None:
        self._emit(level, event, fields)

    def _emit(self, level: int, event: str, fields: dict[str, Any], *, exc_info: bool = False) -> None:
        fields = self._fields | fields
        structlog: Any = sys.modules.get("structlog")
        # Each event checks whether structlog is configured, because applications configure logging after their imports.
        # While another thread imports structlog, the module exists, but has no functions yet.
        if structlog is not None and getattr(structlog, "is_configured", bool)():
            if self._structured is None:
                self._structured = structlog.get_logger(self._name)
            if exc_info:
                fields["exc_info"] = True
            self._structured.log(level, event, **fields)
        elif self._plain.isEnabledFor(level):
            words = [event, *(f"{name}={value!r}" for name, value in fields.items())]
            extra = {"event": event, "fields": fields}
            self._plain.log(level, "%s", " ".join(words), exc_info=exc_info, stacklevel=3, extra=extra)


def get_logger(name: str) -> Logger:
    """Return the logger of the module `name`."""
    return Logger(name)
