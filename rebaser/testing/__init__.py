"""Supports tests of programs that use Rebaser: a NATS server and a Rebaser server start within about a second.

`local` starts them, `in_process` computes derived values without Spark, `functions` takes the functions of a test, and
`plugin` has the fixtures for pytest, and `workspace_clients` the clients that they yield.
`checks` runs the functions of plug-ins like Spark's workers. `strategies` has strategies for Hypothesis; tests import
this module directly.

This package imports `serving`, the modules that `serving` imports, and the client. No other package imports it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rebaser.testing.checks import check_function
    from rebaser.testing.local import LocalRebaser, local_rebaser
    from rebaser.testing.workspace_clients import BlockingWorkspaceClient, WorkspaceClient

__all__ = ["BlockingWorkspaceClient", "LocalRebaser", "WorkspaceClient", "check_function", "local_rebaser"]

_MODULES = {
    "BlockingWorkspaceClient": "rebaser.testing.workspace_clients",
    "WorkspaceClient": "rebaser.testing.workspace_clients",
    "LocalRebaser": "rebaser.testing.local",
    "check_function": "rebaser.testing.checks",
    "local_rebaser": "rebaser.testing.local",
}


def __getattr__(name: str) -> object:
    """Import `name` when it is first used, because pytest loads this package for its fixtures even if no test uses
    them."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
