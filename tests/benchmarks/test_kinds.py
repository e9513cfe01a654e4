"""Every case of the benchmark gives the same results as computing one by one. Times are only printed."""

import pytest

from rebaser.dvu.compiled import loader
from rebaser.dvu.worker.evaluate import evaluate_packet
from tests.benchmarks.kinds import CASES, measure, one_by_one, work

pytestmark = pytest.mark.bench


def test_all_cases_are_the_same_together_and_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert loader.load()
    packets = {name: work(*case, 1000).encode() for name, case in CASES.items()}
    together = {name: evaluate_packet(data) for name, data in packets.items()}
    one_by_one(monkeypatch)
    for name, data in packets.items():
        assert evaluate_packet(data) == together[name], name


def test_a_case_is_measured() -> None:
    found = measure("concat of texts", 500, 1)
    assert min(found["together"], found["one by one"]) > 0
