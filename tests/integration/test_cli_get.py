"""`rebaser get`: ids, patterns and definitions."""

import json

import pytest

from rebaser.cli.commands.get import MAX_ROWS
from rebaser_client import Derive, Match, RebaserClient, Set
from rebaser_client.jetstream import JetStream
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects
from tests.support.commands import rebaser
from tests.support.owners import Engine, serving

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]


@pytest.fixture
async def cart(js: JetStream, subjects: Subjects, nats_url: str) -> None:
    engine = Engine()
    engine.go.set()
    updates = [
        Set("cart/1/price", 1),
        Set("cart/2/price", 2),
        Set("cart/2/name", "x"),
        Set("odd*id", 3),
        Derive("total", "sum", {"values": Match("cart/*/price")}),
        Derive("gross", "cel", {"t": "total"}, {"expr": "t * 2"}),
    ]
    async with serving(js, subjects, engine), RebaserClient.connect(nats_url, prefix=subjects.prefix) as client:
        await client.enqueue_updates_with_reply("ws", "cs", updates, wait="derived")  # type: ignore[arg-type]


@pytest.fixture
def get(nats_url: str, subjects: Subjects) -> "Get":
    return Get(nats_url, subjects.prefix)


class Get:
    def __init__(self, url: str, prefix: str) -> None:
        self._where = ("--nats", url, "--prefix", prefix)

    async def __call__(self, *arguments: str, change_set: str = "cs") -> tuple[int, list[str], str]:
        done = await rebaser("get", "ws", change_set, *arguments, *self._where)
        return done.returncode, done.stdout.splitlines(), done.stderr


@pytest.mark.usefixtures("cart")
async def test_a_pattern_gives_what_matches_and_an_id_is_no_pattern(get: Get) -> None:
    code, lines, _ = await get("cart/*/price", "odd*id", "cart/1/price")
    assert (code, [line.split("\t")[0] for line in lines]) == (0, ["cart/1/price", "cart/2/price", "odd*id"])
    code, lines, _ = await get("cart/**", "--updates")
    assert (code, sorted(json.loads(line)["id"] for line in lines)) == (
        0,
        ["cart/1/price", "cart/2/name", "cart/2/price"],
    )


@pytest.mark.usefixtures("cart")
async def test_what_matches_nothing_is_told(get: Get) -> None:
    code, lines, err = await get("no/*", "total")
    assert (code, [line.split("\t")[0] for line in lines]) == (1, ["total"])
    assert "ws/cs has no value no/*" in err


@pytest.mark.usefixtures("cart")
async def test_nothing_but_what_was_asked_for_is_shown(get: Get) -> None:
    for more in ((), ("--updates",), ("--json",)):
        code, lines, _ = await get("no/*", *more)
        assert (code, lines) == (1, [])


@pytest.mark.usefixtures("cart")
async def test_definitions_stand_beside_values_if_asked_for(get: Get) -> None:
    _, lines, _ = await get("total", "gross", "cart/1/price", "--json", "--with-definitions")
    found = {value.pop("id"): value for value in map(json.loads, lines)}
    assert found["total"] == {
        "value": 3,
        "state": "ok",
        "error": None,
        "function": "sum",
        "inputs": {"values": {"match": "cart/*/price"}},
        "params": {},
    }
    assert "function" not in found["cart/1/price"]
    _, lines, _ = await get("gross", "cart/1/price", "--with-definitions")
    assert lines == ['gross\tok\t6\t\tcel {"t":"total"} {"expr":"t * 2"}', "cart/1/price\tok\t1\t\t"]
    _, lines, _ = await get("gross")
    assert lines == ["gross\tok\t6\t"]


@pytest.mark.usefixtures("cart")
async def test_a_position_is_shown_as_it_was(get: Get, js: JetStream, subjects: Subjects) -> None:
    edited = await js.next(subjects.commits_stream, subjects.commits(ChangeSetKey("ws", "cs")), 1)
    assert edited is not None
    first = edited.sequence
    code, lines, _ = await get("total", "gross", "--json", change_set=f"cs@{first}")
    found = [json.loads(line) for line in lines]
    assert (code, [(value["state"], value["position"]) for value in found]) == (
        0,
        [("stale", first), ("stale", first)],
    )
    _, lines, _ = await get("gross", change_set="cs@0s")
    assert lines == ["gross\tok\t6\t"]
    _, lines, err = await get(change_set="cs@1d")
    assert (lines, err) == ([], "ws/cs@0 has no values\n")
    code, lines, err = await get("total", change_set=f"cs@{first + 1000}")
    assert (code, lines) == (1, [])
    assert f"ws/cs@{first + 1000} does not exist yet" in err
    code, _, err = await get(change_set="cs@soon")
    assert code == 2
    assert "write cs@1234 (a sequence), cs@2h (an age) or cs@2026-01-31T12:00Z (a time)" in err


async def test_what_is_not_shown_on_a_terminal_is_written_whole(
    get: Get, js: JetStream, subjects: Subjects, nats_url: str
) -> None:
    """A terminal gets only the first rows; a file or another command gets all."""
    engine = Engine()
    engine.go.set()
    async with serving(js, subjects, engine), RebaserClient.connect(nats_url, prefix=subjects.prefix) as client:
        await client.enqueue_updates_with_reply("ws", "many", [Set(f"v{number}", 1) for number in range(MAX_ROWS + 1)])
    code, lines, _ = await get(change_set="many")
    assert (code, len(lines)) == (0, MAX_ROWS + 1)
