"""The benchmark of dependent values updates; `python -m tests.benchmarks.dvu --help` explains what it measures."""

from tests.benchmarks.dvu.loaded import Loaded, Model, measure, updates

__all__ = ["Loaded", "Model", "measure", "updates"]
