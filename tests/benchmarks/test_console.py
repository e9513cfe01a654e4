"""The benchmarks of the console, in their short form: each part runs, and finds what it measures. Times are printed."""

import sys

import pytest

from tests.benchmarks import console, console_requests
from tests.support.browser import need_browser

pytestmark = [pytest.mark.anyio, pytest.mark.bench]
SHORT = ["--values", "2000", "--change-sets", "50", "--asks", "5", "--seconds", "1", "--rate", "100", "--browser", "2"]


async def run(port: int, parts: str) -> dict[str, float]:
    return await console.measure(console.parser().parse_args([*SHORT, "--port", str(port), "--parts", parts]))


async def test_the_api_and_the_watch(
    unused_port: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "SEEN", 2)
    found = await run(unused_port, "api,fleet")
    names = {f"{name}_p95_ms" for name in ("page", "value", "graph", "search", "two_words", "pattern", "table")}
    assert names | {"cold_s", "others_p99_ms", "index_s", "idle", "live", "seen_p95_s"} <= found.keys()
    assert found["live_rate"] > 0
    with capsys.disabled():
        print(f"\n  search p95 {found['search_p95_ms']} ms, seen after {found['seen_p95_s']} s", file=sys.stderr)


async def test_a_browser_that_stays_open(unused_port: int) -> None:
    need_browser()
    found = await run(unused_port, "browser")
    assert found["heap_mb"] > 0
    assert found["nodes"] > 100


async def test_requests_with_a_console_and_without(unused_port: int) -> None:
    given = ["--seconds", "0.3", "--rounds", "1", "--keys", "20", "--port", str(unused_port)]
    found = await console_requests.measure(console_requests.parser().parse_args(given))
    assert all(found[f"{phase} per_s"][way] > 0 for phase in ("many", "keys") for way in ("with", "without"))
    assert found["keys cpu"]["with"] > 0
    assert found["console"] >= 0, "less than a tick of the clock of processor times may be left of it"
