"""Hostile names and values on every page of the console, in every look: they stay text, and fit."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import quote

import anyio
import pytest

from rebaser.cli.commands.observing.playground import make_playground
from rebaser.console.files import FOLDER
from rebaser.testing import LocalRebaser
from rebaser_client import Derive, RebaserClient, Set, Update
from rebaser_client.jetstream import Connection, JetStream
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects
from tests.support.browser import Seen, browser, need_browser, opened
from tests.support.draws import drawing
from tests.support.troubled_updates import troubled, troubled_updates
from tests.support.web_console import web_console

pytestmark = [pytest.mark.anyio]

MARKUP = "<img src=x onerror=document.title='owned'>"
TEXTS = [
    MARKUP,
    '"><script>document.title="owned"</script><svg onload=document.title="owned">',
    "invoice \u202e00.1 \u2066hidden\u200b\u00ad\u2028 part",
    "javascript:document.title='owned'",
    "x" * 3000,
    "one\ntwo\r\n\tthree\x07\x1b[31m",
    "${7*7} {{7*7}} %00 \\u202e `rm -rf /`",
    "é\u0301" * 300,  # marks above marks
]
IDS = [text for text in TEXTS if text.isprintable() and len(text) <= 200] + ["y" * 200, "__proto__", "a/" * 60 + "z"]
# Names that objects of JavaScript have by themselves, and the longest that there may be.
SPACE, MAIN, BRANCH, WAITING = "constructor", "__proto__", "w" * 64, "hasOwnProperty"
LOOKS = (("dark", "phone"), ("light", "desk"), ("dark", "wall"))
UNSEEN = "[\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]"

# What is wrong with the page that is shown; empty if nothing is.
WRONG = """(unseen) => {
  const main = document.querySelector("main");
  const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  if (wide > 0) {
    const beyond = (one) => one.getBoundingClientRect().right > innerWidth && !one.closest(".scroll *, svg *");
    const out = [...main.querySelectorAll("*")].filter(beyond);
    return `it is ${wide} pixels wider than the window: ${out.at(-1)?.outerHTML.slice(0, 200)}`;
  }
  if (document.title === "owned") return "it is owned";
  const made = main.querySelector("img, script, iframe, object, embed, base, meta, [onload], [onerror]");
  if (made !== null) return `it has ${made.outerHTML.slice(0, 200)}`;
  const leadsAway = (one) => new URL(one.getAttribute("href"), location).protocol !== "http:";
  const link = [...document.querySelectorAll("a")].find(leadsAway);
  if (link !== undefined) return `it has a link to ${link.getAttribute("href")}`;
  const found = new RegExp(`.{0,40}${unseen}.{0,40}`).exec(document.getElementById("app").innerText);
  return found === null ? "" : `it shows what cannot be seen: ${JSON.stringify(found[0])}`;
}"""


def pages(commits: dict[str, list[int]], letters: list[int]) -> dict[str, list[str]]:
    """Return the addresses to look at, by the name of the page."""
    base, branch = f"/change-sets/{SPACE}/{MAIN}", f"/change-sets/{SPACE}/{BRANCH}"
    words = [quote(text[:200], safe="") for text in TEXTS]
    ids = [quote(id_, safe="") for id_ in [*IDS, *(f"of {id_}"[:200] for id_ in IDS)]]
    return {
        "overview": ["/"],
        "change_sets": [
            "/change-sets",
            f"/change-sets?q={SPACE}/&state=all",
            *(f"/change-sets?q={one}" for one in words),
        ],
        "values": [base, f"{base}?q=*", f"{base}?state=error", *(f"{base}?q={one}" for one in words)],
        "value": [f"{base}/value?id={one}" for one in [*ids, *words]],
        "neighbours": [f"{base}/neighbours?id={one}" for one in ids] + [f"{base}/neighbours?id=vat&q={words[2]}"],
        "queue": [f"{base}/queue", f"/change-sets/{SPACE}/{WAITING}/queue?sequence=1"],
        "graph": [f"{base}/graph?id={one}" for one in [*ids[: len(ids) // 2 + 1], words[2]]],
        "commits": [f"{base}/commits", f"{branch}/commits"],
        "commit": [f"{base}/commit?at={at}" for at in commits[MAIN]] + [f"{branch}/commit?at={commits[BRANCH][0]}"],
        "explain": [f"{base}/explain", f"/change-sets/{SPACE}/{WAITING}/explain", f"{base}{words[2]}/explain"],
        "changes": [f"{branch}/changes?derived=yes"],
        "conflicts": [f"{branch}/conflicts"],
        "updates": [f"{base}/updates", f"/change-sets/{SPACE}/{WAITING}/updates"],
        "branches": ["/branches", f"/branches?q={words[2]}"],
        "compare": [f"/compare?workspace={SPACE}&a={MAIN}&b={BRANCH}", f"/compare?workspace={words[0]}&a={words[2]}"],
        "dvu": ["/dvu", f"/dvu?q={words[0]}"],
        "dead_letters": ["/dead-letters", f"/dead-letters?workspace={SPACE}"],
        "dead_letter": [f"/dead-letters/letter?sequence={letter}" for letter in letters],
        "playground": ["/playground"],
    }


async def fill(client: RebaserClient) -> dict[str, list[int]]:
    """Put each text into everything that a client may name. Returns the positions of commits."""
    edits: list[Update] = [Set(id_, TEXTS[at % len(TEXTS)]) for at, id_ in enumerate(IDS)]
    edits += [Set(f"text/{at}", {text: [text]}) for at, text in enumerate(TEXTS)]
    edits += [Derive(f"of {id_}"[:200], "sum", {id_: [id_, "text/0"]}) for id_ in IDS]
    edits.append(Derive("cel", "cel", {"a": "text/1"}, {"expr": f"a + {json.dumps(TEXTS[2])} // {MARKUP}"}))
    edits.append(Derive("no function", MARKUP, {MARKUP: MARKUP}, {text: text for text in TEXTS}))
    for at, text in enumerate(TEXTS):
        last = at == len(TEXTS) - 1
        await client.enqueue_updates_with_reply(
            SPACE, MAIN, edits if last else [Set("count", at)], author=text[:100], message=text[:1000], wait="derived"
        )
    await client.create_branch(SPACE, BRANCH, parent=MAIN)
    for name, text in ((BRANCH, "ours \u202e"), (MAIN, "theirs \u202e")):
        await client.enqueue_updates_with_reply(SPACE, name, [Set(id_, text + MARKUP) for id_ in IDS], wait="derived")
    await client.rebase(SPACE, BRANCH)
    await client.enqueue_updates_with_reply(SPACE, WAITING, troubled("fail"))
    found: dict[str, list[int]] = {}
    for name in (MAIN, BRANCH):
        found[name] = [entry.sequence async for entry in client.log(SPACE, name)]
    return found


async def bury(url: str, client: RebaserClient) -> list[int]:
    """Send requests that no server can read. Returns the numbers of their dead letters."""
    async with Connection.connect(url) as connection:
        for text in TEXTS:
            header = "".join(one for one in text[:500] if one.isprintable() or one in "\u202e\u200b")
            subject = Subjects("").requests(ChangeSetKey(SPACE, MAIN))
            await JetStream(connection).publish(subject, text.encode(), {"X-Sender": header, f"X-{len(text)}": header})
    with anyio.fail_after(60):
        while True:
            found = [letter.sequence async for letter in client.dead_letters.find(SPACE)]
            if len(found) == len(TEXTS):
                return found
            await anyio.sleep(0.05)


@asynccontextmanager
async def hostile_server(url: str) -> AsyncIterator[None]:
    """A program that answers pings like a server, with hostile texts in everything that a server may send."""
    texts = dict.fromkeys(("id", "version", "dvu", "durability", "trouble"), "".join(TEXTS[:3]))
    answer = json.dumps({**texts, "owned": 1, "slots": 2, "ready": False, "losses": TEXTS}).encode()
    async with Connection.connect(url) as connection, anyio.create_task_group() as group:

        async def answer_pings() -> None:
            async with connection.subscribe(Subjects("").ping) as pings:
                async for ping in pings:
                    await connection.publish(str(ping.reply), answer)

        group.start_soon(answer_pings)
        yield
        group.cancel_scope.cancel()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.long)], ids=["some", "every address"])
async def test_no_text_of_others_becomes_markup_misleads_or_breaks_a_page(
    anyio_backend: str, installation: LocalRebaser, every: bool
) -> None:
    """In the short form, one address of each page is drawn for each look."""
    need_browser()
    routes, _, _ = (FOLDER / "js" / "app.js").read_text().partition("\n];")
    seen, wrong, draw = Seen(), list[str](), drawing("hostile addresses")
    with troubled_updates():
        async with (
            RebaserClient.connect(installation.url) as client,
            hostile_server(installation.url),
            web_console(installation.url, actions=True, playground=make_playground()) as console,
            browser() as running,
        ):
            found = pages(await fill(client), await bury(installation.url, client))
            assert found.keys() == set(re.findall(r'", "(\w+)"\]', routes)), "each page has an address here"
            for theme, size in LOOKS:
                chosen = [address for some in found.values() for address in (some if every else [draw.choice(some)])]
                async with opened(running, theme=theme, size=size, seen=seen) as page:
                    for address in chosen:
                        await page.goto(console.url + address)
                        await page.wait_for_selector("h1")
                        await page.wait_for_selector(".loading", state="detached")
                        if problem := await page.evaluate(WRONG, UNSEEN):
                            wrong.append(f"{address[:120]} {theme} {size}: {problem}")
    assert not wrong, "\n".join(wrong)
    refused = [one for one in seen.complaints if "Failed to load resource" not in one]  # what does not exist is a 404
    assert refused == []
