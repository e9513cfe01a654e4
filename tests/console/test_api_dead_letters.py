"""Dead letters through the API, on a real installation: pages, one letter, redriving and dropping."""

import anyio
import pytest

from rebaser.console.api import dead_letters
from rebaser.testing import LocalRebaser
from rebaser_client import DeadLetter, RebaserClient, Set
from rebaser_client.jetstream import Connection, JetStream
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects
from tests.support.web_console import WebConsole

pytestmark = pytest.mark.anyio

MARKUP = "<img src=x onerror=alert(1)>"


@pytest.fixture
async def letters(installation: LocalRebaser, client: RebaserClient, ws: str) -> list[int]:
    """The numbers of three dead letters of `main`: requests that no server can read."""
    key, subjects = ChangeSetKey(ws, "main"), Subjects("")
    async with Connection.connect(installation.url) as connection:
        for number in range(3):
            headers = {"X-Hello": MARKUP, "Nats-Msg-Id": f"{ws}-{number}"}
            await JetStream(connection).publish(subjects.requests(key), f"{MARKUP}{number}".encode(), headers)
    await client.enqueue_updates_with_reply(ws, "main", [Set("a", 1)])
    return [letter.sequence for letter in await buried(client, ws, 3)]


async def buried(client: RebaserClient, ws: str, number: int) -> list[DeadLetter]:
    """The dead letters of `ws`, as soon as there are so many: the copies are made beside the answers."""
    with anyio.fail_after(60):
        while True:
            found = [letter async for letter in client.dead_letters.find(ws)]
            if len(found) == number:
                return found
            await anyio.sleep(0.05)


async def test_dead_letters_are_read_in_pages(console: WebConsole, ws: str, letters: list[int]) -> None:
    first = await console.get(f"/dead-letters?workspace={ws}&limit=2")
    assert ([row["sequence"] for row in first["rows"]], first["next"]) == (letters[:2], letters[1])
    second = await console.get(f"/dead-letters?workspace={ws}&limit=2&after={first['next']}")
    assert ([row["sequence"] for row in second["rows"]], second["next"]) == (letters[2:], None)
    assert {row["code"] for row in first["rows"]} == {"malformed"}
    assert (await console.get(f"/dead-letters?workspace={ws}&changeSet=main&code=poison"))["rows"] == []
    assert (await console.get("/dead-letters?changeSet=main", 400))["error"]["code"] == "invalid_argument"
    assert (await console.get("/dead-letters?workspace=a.b", 400))["error"]["code"] == "invalid_id"


async def test_a_letter_is_shown_with_what_was_sent(console: WebConsole, letters: list[int]) -> None:
    letter = await console.get(f"/dead-letter?sequence={letters[0]}")
    assert (letter["readable"], letter["payload"]["text"]) == (False, f"{MARKUP}0")
    assert letter["headers"]["X-Hello"] == MARKUP
    assert (await console.get("/dead-letter?sequence=999999999", 404))["error"]["code"] == "no_such_dead_letter"


async def test_they_are_redriven_and_dropped_and_several_only_on_purpose(
    acting: WebConsole, client: RebaserClient, ws: str, letters: list[int]
) -> None:
    refused = await acting.act("/dead-letters/drop", {"sequences": letters}, 400)
    assert "type the number of dead letters, 3" in refused["error"]["message"]
    assert await acting.act("/dead-letters/redrive", {"sequences": letters[:1]}) == {"done": 1, "gone": 0, "failed": []}
    answer = await acting.act("/dead-letters/drop", {"sequences": letters, "count": 3})
    assert (answer["done"], answer["gone"], answer["failed"]) == (2, 1, [])
    await client.enqueue_updates_with_reply(ws, "main", [Set("a", 2)])
    [again] = await buried(client, ws, 1)
    assert again.redrive == 1, "it is no better than before"


@pytest.mark.parametrize("sequences", [None, [], ["1"], [True], [1.5], list(range(101))])
async def test_what_names_no_letters_is_refused(acting: WebConsole, sequences: object) -> None:
    for action in dead_letters.ACTIONS:
        assert (await acting.act(action.path, {"sequences": sequences}, 400))["error"]["code"] == "invalid_argument"
