"""Configures logging: events go to stderr, as lines for people or as JSON.

Invariant: no event goes to stdout, which is for results, and no traceback shows local variables.
"""

import logging
import os
import sys

import structlog

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure(level: str, format_: str) -> None:
    """Configure structlog. `format_`: `console`, `json`, or `auto`: `console` on a terminal, `json` elsewhere."""
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
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
