"""Blocking calls of `Logs`, for Spark's processes, which have no event loop."""

from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import TypeVar, TypeVarTuple

from anyio.from_thread import start_blocking_portal

from rebaser_client.spark.logs import Logs
from rebaser_client.spark.options import SourceOptions
from rebaser_core.errors import RebaserError

T = TypeVar("T")
Args = TypeVarTuple("Args")


class BlockingLogs:
    """A connection that makes blocking calls to `Logs`. It is opened on creation, and stays open until `close`.

    Errors from `Logs` are raised without their causes: Spark shows full tracebacks, which could reveal secrets in the
    error messages of other libraries.
    """

    def __init__(self, options: SourceOptions) -> None:
        try:
            with ExitStack() as stack:
                self._portal = stack.enter_context(start_blocking_portal())
                self._logs = stack.enter_context(self._portal.wrap_async_context_manager(Logs.connect(options)))
                self._stack = stack.pop_all()
        except RebaserError as error:
            raise error.with_traceback(None) from None

    def call(self, method: Callable[[Logs, *Args], Awaitable[T]], *args: *Args) -> T:
        """Call `method`, a method of `Logs`, with `args`, and return its result."""
        try:
            return self._portal.call(method, self._logs, *args)
        except RebaserError as error:
            raise error.with_traceback(None) from None

    def close(self) -> None:
        self._stack.close()
