"""A file of a real dependency graph with cycles is sent by the command line, and every resulting value is checked."""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import pytest

from rebaser_client import RebaserClient
from rebaser_core.updates import Update
from tests.support import stdlib_graph
from tests.support.commands import ROOT, command, environment, rebaser_json
from tests.support.stdlib_graph import Graph

pytestmark = [pytest.mark.anyio, pytest.mark.spark]

LONG = 100_000  # updates


@pytest.fixture(scope="module")
def graph() -> Graph:
    return stdlib_graph.standard_library()


@pytest.fixture
def cs() -> str:
    return f"graph-{uuid4().hex}"


def write(path: Path, updates: Iterable[Update]) -> int:
    """Write a JSON Lines file, and return the number of lines."""
    lines = [json.dumps(update.to_wire()) for update in updates]
    path.write_text("\n".join(lines))
    return len(lines)


async def sent(nats_url: str, cs: str, path: Path) -> Any:
    """Send a file, wait until derived values are up to date, and return the output of the command."""
    [report] = await rebaser_json(
        *("enqueue", "graph", cs, "--file", str(path), "--wait", "derived", "--timeout", "110"), nats_url=nats_url
    )
    return report


async def shown(nats_url: str, cs: str) -> dict[str, dict[str, Any]]:
    """Return all values by id, as the command shows them."""
    return {one.pop("id"): one for one in await rebaser_json("get", "graph", cs, nats_url=nats_url)}


def check(found: dict[str, dict[str, Any]], expected: dict[str, dict[str, Any]]) -> None:
    """Compare both, with a short message for differences."""
    assert found.keys() == expected.keys()
    different = {id_: (found[id_], expected[id_]) for id_ in expected if found[id_] != expected[id_]}
    assert dict(list(different.items())[:3]) == {}, f"{len(different)} of {len(expected)} differ (found, expected)"


async def test_the_imports_of_the_standard_library_and_their_cycles(
    fleet_url: str, fleet: object, cs: str, graph: Graph, tmp_path: Path
) -> None:
    """Every closure, size, count and depth equals one that is computed separately; every cycle names its members."""
    file = tmp_path / "stdlib.jsonl"
    count = write(file, stdlib_graph.updates(graph))
    report = await sent(fleet_url, cs, file)
    assert (report["updates"], report["performed"]) == (count, count)
    expected = stdlib_graph.expected(graph)
    codes = Counter((one["error"] or {}).get("code") for one in expected.values())
    assert min(codes[None], codes["cycle"], codes["failed_input"]) > 20, "the library lost its cycles"
    check(await shown(fleet_url, cs), expected)

    mended, changed = graph.mended()
    edits = [update for module in changed for update in stdlib_graph.derived_at_load(mended, module)]
    write(file, edits)
    report = await sent(fleet_url, cs, file)
    assert report["updates"] == len(edits)
    expected = stdlib_graph.expected(mended)
    assert all(expected[f"load/{module}"]["error"] is None for module in graph.sizes)
    check(await shown(fleet_url, cs), expected)


@pytest.mark.long
@pytest.mark.timeout(1200)
async def test_a_hundred_thousand_updates(
    fleet_url: str, client: RebaserClient, cs: str, graph: Graph, tmp_path: Path
) -> None:
    """Many copies of the graph are in one change set."""
    one = len(list(stdlib_graph.updates(graph)))
    prefixes = [f"{number:02}/" for number in range(LONG // one + 1)]
    file = tmp_path / "copies.jsonl"
    updates = [update for prefix in prefixes for update in stdlib_graph.updates(graph, prefix)][:LONG]
    assert write(file, updates) == LONG
    with anyio.fail_after(900):
        done = await anyio.run_process(
            command("enqueue", "graph", cs, "--file", str(file), "--wait", "derived", "--timeout", "600"),
            cwd=ROOT,
            env=environment(nats_url=fleet_url),
        )
    print(done.stdout.decode())
    values = await client.values("graph", cs)
    # The last copy is incomplete.
    whole = {id_: value for id_, value in values.items() if not id_.startswith(prefixes[-1])}
    expected = {id_: one for p in prefixes[:-1] for id_, one in stdlib_graph.expected(graph, p).items()}
    check({id_: as_shown(value) for id_, value in whole.items()}, expected)


def as_shown(value: Any) -> dict[str, Any]:
    error = value.error
    fault = None if error is None else {"code": error.code, "message": error.message, "origin": error.origin}
    return {"value": value.value, "state": value.state.value, "error": fault}
