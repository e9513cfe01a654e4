"""Where log events go: stderr, as lines for people or as JSON for machines.

Invariant: stdout belongs to results, and no event shows local variables.
"""

import logging
import os
import sys

import structlog

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure(level: str, format_: str) -> None:
    """Set up structlog. `format_`: `console`, `json`, or `auto`: lines on a terminal, JSON elsewhere."""
    as_json = format_ == "json" or (format_ == "auto" and not sys.stderr.isatty())
    processors: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if as_json:
        processors += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        # Not the default: that one shows local variables, which hold other people's values.
        traceback = structlog.dev.plain_traceback
        colors = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
        processors.append(structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=traceback))
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
