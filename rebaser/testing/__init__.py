"""For the tests of those who build on Rebaser: a NATS server and a Rebaser server, ready within about a second.

`local` starts them, `in_process` computes derived values without Spark, and `plugin` has the fixtures for pytest.

Imports `serving` and what that imports, and the client. Nothing of `rebaser` imports it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rebaser.testing.local import LocalRebaser, local_rebaser

__all__ = ["LocalRebaser", "local_rebaser"]


def __getattr__(name: str) -> object:
    """Import on first use: pytest loads this package for its fixtures, even where no test asks for one."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("rebaser.testing.local"), name)
