"""Delays or prevents the import of large modules that libraries import eagerly although few commands use them.

This module is only used in the command's own process, because a library must not change how an application's modules
are imported.
"""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType

LAZY = frozenset(
    {
        "aiohttp",  # nats-py imports it if it is installed; only ws:// and wss:// need it
        "nats.js",  # part of nats-py; `rebaser_client.jetstream` replaces it
    }
)


class LazyFinder:
    """Finds the modules in `LAZY`. Each module is executed only when one of its attributes is first read."""

    @staticmethod
    def find_spec(fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname in LAZY else None
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


def install() -> None:
    """Make this process import the modules in `LAZY` only when they are first used."""
    sys.meta_path.insert(0, LazyFinder)


class HiddenPandas:
    """Finds no pandas, even if it is installed."""

    @staticmethod
    def find_spec(fullname: str, *_: object) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError(fullname)


def hide_pandas() -> None:
    """Keep this process from importing pandas. Arrow imports it when it first converts an array, which takes a second;
    Spark needs it, and plug-ins may."""
    sys.meta_path.insert(0, HiddenPandas)
