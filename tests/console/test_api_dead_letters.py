"""Dead letters through the API, on a real installation: pages, one letter, redriving and dropping."""

from types import SimpleNamespace

import anyio
import pytest

from rebaser.console.api import dead_letters
from rebaser.testing import LocalRebaser
from rebaser_client import DeadLetter, DeadLetterBox, RebaserClient, Set
from rebaser_client.jetstream import Connection, JetStream
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects
from tests.conftest import Events
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


async def test_they_are_counted_by_code(
    console: WebConsole, ws: str, letters: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert letters
    codes = f"/dead-letters/codes?workspace={ws}"
    assert await console.get(codes) == {"codes": [{"code": "malformed", "count": 3}], "counted": 3, "complete": True}
    assert (await console.get(f"{codes}&changeSet=other"))["codes"] == []
    monkeypatch.setattr(dead_letters, "MAX_COUNTED", 2)
    assert await console.get(f"{codes}&changeSet=main") == {
        "codes": [{"code": "malformed", "count": 2}],
        "counted": 2,
        "complete": False,
    }


async def test_a_letter_is_shown_with_what_was_sent(console: WebConsole, letters: list[int]) -> None:
    letter = await console.get(f"/dead-letter?sequence={letters[0]}")
    assert letter["payload"]["text"] == f"{MARKUP}0"
    assert letter["problem"].endswith("these are its bytes")
    assert letter["headers"]["X-Hello"] == MARKUP
    assert (await console.get("/dead-letter?sequence=999999999", 404))["error"]["code"] == "no_such_dead_letter"


async def test_a_request_that_can_be_read_is_shown_as_json(console: WebConsole, client: RebaserClient, ws: str) -> None:
    await client.enqueue_updates_with_reply(ws, "main", [Set("a", 1)], request_id="once")
    await client.enqueue_updates(ws, "main", [Set("a", 2)], request_id="once")
    [letter] = await buried(client, ws, 1)
    answer = await console.get(f"/dead-letter?sequence={letter.sequence}")
    assert (answer["problem"], answer["code"]) == (None, "request_id_reused")
    assert '"value": 2' in answer["payload"]["text"]


@pytest.mark.parametrize("address", ["sha256:" + "0" * 64, "nowhere"])
async def test_a_letter_with_odd_headers_and_without_its_blob_is_shown(
    console: WebConsole, installation: LocalRebaser, client: RebaserClient, ws: str, address: str
) -> None:
    subject = Subjects("").dlq(ChangeSetKey(ws, "main"))
    odd = {"X-Dead-At-Ms": "9" * 19, "X-Payload-Address": address, "X-Reason-Code": MARKUP * 50}
    async with Connection.connect(installation.url) as connection:
        await JetStream(connection).publish(subject, b"", odd)
    [letter] = await buried(client, ws, 1)
    [row] = (await console.get(f"/dead-letters?workspace={ws}"))["rows"]
    assert (row["time"][:4], len(row["code"])) == ("9999", 200)
    answer = await console.get(f"/dead-letter?sequence={letter.sequence}")
    assert answer["problem"]
    assert answer["payload"]["text"] == ""


async def test_a_large_request_is_not_decoded(
    console: WebConsole, letters: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "MAX_DECODED", 5)
    answer = await console.get(f"/dead-letter?sequence={letters[0]}")
    assert answer["problem"] == "it is too large to be shown"
    assert answer["payload"]["text"] == ""


async def test_they_are_redriven_and_dropped_and_several_only_on_purpose(
    acting: WebConsole, client: RebaserClient, ws: str, letters: list[int], events: Events
) -> None:
    refused = await acting.act("/dead-letters/drop", {"sequences": letters}, 400)
    assert "type the number of dead letters, 3" in refused["error"]["message"]
    done = await acting.act("/dead-letters/redrive", {"sequences": letters[:1]})
    assert done == {"done": 1, "gone": 0, "failed": [], "unsure": [], "left": 0}
    answer = await acting.act("/dead-letters/drop", {"sequences": letters, "count": 3})
    assert (answer["done"], answer["gone"], answer["failed"]) == (2, 1, [])
    await client.enqueue_updates_with_reply(ws, "main", [Set("a", 2)])
    [again] = await buried(client, ws, 1)
    assert again.redrive == 1, "it is no better than before"
    told = [(one["outcome"], one["sequences"]) for one in events.named("console_action")]
    assert told == [("invalid_argument", str(letters)), ("done", str(letters[:1])), ("done", str(letters))]


async def test_an_action_that_takes_too_long_tells_what_it_did(
    acting: WebConsole, letters: list[int], events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NATS goes away after the first letter. One bound holds for all, not one for each."""
    drop, bounds = DeadLetterBox.drop, list[anyio.CancelScope]()

    def bounded(seconds: float) -> anyio.CancelScope:
        bounds.append(anyio.move_on_after(seconds))
        return bounds[-1]

    async def stuck(self: DeadLetterBox, letter: DeadLetter) -> None:
        if letter.sequence != letters[0]:
            [bound] = bounds
            bound.deadline = anyio.current_time()
            await anyio.sleep_forever()
        await drop(self, letter)

    monkeypatch.setattr(DeadLetterBox, "drop", stuck)
    monkeypatch.setattr(dead_letters, "anyio", SimpleNamespace(move_on_after=bounded))
    answer = await acting.act("/dead-letters/drop", {"sequences": letters, "count": 3})
    assert answer == {"done": 1, "gone": 0, "failed": [], "unsure": [letters[1]], "left": 1}
    assert [event["outcome"] for event in events.named("console_action")] == ["partly"]


@pytest.mark.parametrize("sequences", [None, [], ["1"], [True], [1.5], [0], [2**63], list(range(1, 102))])
async def test_what_names_no_letters_is_refused(acting: WebConsole, sequences: object) -> None:
    for action in dead_letters.ACTIONS:
        assert (await acting.act(action.path, {"sequences": sequences}, 400))["error"]["code"] == "invalid_argument"
