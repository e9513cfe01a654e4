"""Turns on the traces of a server if the standard variables of OpenTelemetry (`OTEL_…`) say where to send them.

Invariant: while traces are off, nothing of OpenTelemetry is imported.
"""

import logging
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

import anyio
import structlog
from anyio import to_thread

from rebaser import __version__

if TYPE_CHECKING:
    from rebaser.telemetry.spans import ServerSpans
    from rebaser.telemetry.update_spans import UpdateSpans

# The spans of the update that the current task is part of; None if traces are off.
UPDATE: Final[ContextVar["UpdateSpans | None"]] = ContextVar("update", default=None)

LAST_EXPORT = 5.0  # seconds that a stopping server spends on sending its last spans

log = structlog.get_logger(__name__)


def wanted(environment: Mapping[str, str]) -> bool:
    """Return whether `environment` says where to send traces."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip()
    endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    return exporter != "none" and bool(exporter or any(environment.get(name) for name in endpoints))


@asynccontextmanager
async def tracing(
    *, server_id: str, ratio: float, per_second: float, slower_than: float, updates_slower_than: float
) -> AsyncIterator["ServerSpans | None"]:
    """Yield what makes the spans of the change sets, or None if traces are off.

    If the environment requests traces that cannot be recorded, a warning is logged, and traces are off. For `ratio`,
    `per_second`, `slower_than` and `updates_slower_than`, see `rebaser.telemetry.span_maker.SpanMaker`.
    """
    provider: Any = None
    if wanted(os.environ):
        try:
            provider = await to_thread.run_sync(_provider, server_id)
        except ImportError as error:
            log.warning("traces_off", reason=f"{error.name} is not installed: pip install 'rebaser[tracing]'")
        except Exception as error:  # noqa: BLE001 - OpenTelemetry and its plug-ins raise many kinds
            log.warning("traces_off", reason=str(error) or type(error).__name__)
    if provider is None:
        yield None
        return
    from rebaser.telemetry.span_maker import SpanMaker  # noqa: PLC0415 - imports OpenTelemetry
    from rebaser.telemetry.spans import ServerSpans  # noqa: PLC0415 - imports OpenTelemetry

    tracer = provider.get_tracer("rebaser", __version__)
    maker = SpanMaker(
        tracer,
        ratio=ratio,
        per_second=per_second,
        slower_than=slower_than,
        updates_slower_than=updates_slower_than,
    )
    try:
        yield ServerSpans(maker)
    finally:
        # A process that exits does not wait for daemon threads, so an export that hangs cannot keep it alive.
        last_export = Thread(target=provider.shutdown, name="last-export", daemon=True)
        last_export.start()
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(last_export.join, LAST_EXPORT)


def _provider(server_id: str) -> Any:
    """Return an OpenTelemetry tracer provider. OpenTelemetry itself reads further environment variables. Raise
    `ImportError` if OpenTelemetry is not installed, and `ValueError` if this server does not support the exporter.
    OpenTelemetry may raise other errors if it refuses the value of a variable."""
    exporter = os.environ.get("OTEL_TRACES_EXPORTER", "").strip() or "otlp"
    if exporter not in ("otlp", "console"):
        raise ValueError(f"OTEL_TRACES_EXPORTER={exporter} is not supported: use otlp, console or none")
    names = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    protocol = next((os.environ[name] for name in names if os.environ.get(name)), "http/protobuf")
    if exporter == "otlp" and protocol != "http/protobuf":
        raise ValueError(
            f"OTLP over {protocol} is not supported: use http/protobuf, which collectors accept on port 4318"
        )
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - only if traces are on
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter  # noqa: PLC0415

    made: Any = ConsoleSpanExporter(out=sys.stderr)
    if exporter == "otlp":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415

        made = OTLPSpanExporter()
    given = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    if name := os.environ.get("OTEL_SERVICE_NAME"):
        given += f",service.name={name}"
    ours = {"service.name": "rebaser", "service.version": __version__, "service.instance.id": server_id}
    resource = Resource.create({name: value for name, value in ours.items() if f"{name}=" not in given})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(made))
    _log_failures()
    return provider


def _log_failures() -> None:
    """Log what OpenTelemetry's own threads report, for instance that spans cannot be sent, as log events of the
    server."""
    logger = logging.getLogger("opentelemetry")
    if not any(isinstance(handler, _Events) for handler in logger.handlers):
        logger.addHandler(_Events(logging.WARNING))
        logger.propagate = False


class _Events(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        log.warning("trace_export_failed", reason=record.getMessage()[:300])
