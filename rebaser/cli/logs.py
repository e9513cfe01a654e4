"""Configures logging: events go to stderr, as lines for people or as JSON.

Invariant: no event goes to stdout, which is for results, and no traceback shows local variables. Commands that log
events import structlog (and thus rich); other commands import it only when there is an error to show.
"""

import logging
import os
import sys
from typing import Any

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure(level: str, format_: str, *, counted: bool = False) -> None:
    """Configure structlog. `format_` is `console`, `json` or `auto`; `auto` means `console` on a terminal and otherwise
    `json`.

    If `counted` is true, events of level info and above are counted for metrics, even those below `level`.
    """
    import structlog

    as_json = format_ == "json" or (format_ == "auto" and not sys.stderr.isatty())
    processors: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if as_json:
        processors += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        # The default formatter would show local variables, which contain users' values.
        traceback = structlog.dev.plain_traceback
        colors = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
        processors.append(structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=traceback))
    lowest = LEVELS[level]
    if counted:
        from rebaser.telemetry.log_events import EventCounter

        processors.insert(0, EventCounter(level))
        lowest = min(lowest, logging.INFO)
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(lowest),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )


def show_errors() -> None:
    """Show the errors that the client logs, unless logging is already configured.

    structlog is configured only when the first error is logged.
    """
    structlog: Any = sys.modules.get("structlog")
    if structlog is None:
        logging.getLogger("rebaser_client").addHandler(_FirstError(logging.ERROR))
    elif not structlog.is_configured():
        configure("error", "console")  # structlog's own default would write to stdout


class _FirstError(logging.Handler):
    """Configures structlog for the first error, and logs this error. Later events go to structlog directly."""

    def emit(self, record: logging.LogRecord) -> None:
        import structlog

        logging.getLogger("rebaser_client").removeHandler(self)
        configure("error", "console")
        event, fields = getattr(record, "event", record.getMessage()), getattr(record, "fields", {})
        exc_info = {"exc_info": record.exc_info} if record.exc_info else {}
        structlog.get_logger(record.name).log(record.levelno, event, **fields, **exc_info)
