"""Where the library's log events go: where the application wants them, and nowhere until it says so.

An application that configured structlog gets them there, as events with fields; any other by the standard `logging`,
under the logger `rebaser_client`, one line an event.
"""

import logging
from typing import Any

import structlog

# Without a handler of its own, the standard library would write warnings to stderr.
logging.getLogger("rebaser_client").addHandler(logging.NullHandler())


class Logger:
    """What a module logs with."""

    __slots__ = ("_plain", "_structured")

    def __init__(self, name: str) -> None:
        self._plain = logging.getLogger(name)
        self._structured: Any = structlog.get_logger(name)

    def debug(self, event: str, **fields: Any) -> None:
        self._tell(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: Any) -> None:
        self._tell(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._tell(logging.WARNING, event, fields)

    def error(self, event: str, **fields: Any) -> None:
        self._tell(logging.ERROR, event, fields)

    def exception(self, event: str, **fields: Any) -> None:
        """An error, with the traceback of the exception that is being handled."""
        self._tell(logging.ERROR, event, fields, exc_info=True)

    def log(self, level: int, event: str, **fields: Any) -> None:
        self._tell(level, event, fields)

    def _tell(self, level: int, event: str, fields: dict[str, Any], *, exc_info: bool = False) -> None:
        if structlog.is_configured():  # at each event: applications do so after their imports
            if exc_info:
                fields["exc_info"] = True
            self._structured.log(level, event, **fields)
        elif self._plain.isEnabledFor(level):
            words = [event, *(f"{name}={value!r}" for name, value in fields.items())]
            self._plain.log(level, "%s", " ".join(words), exc_info=exc_info, stacklevel=3)


def get_logger(name: str) -> Logger:
    """The logger of the module `name`."""
    return Logger(name)
