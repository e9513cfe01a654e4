"""A sum over a pattern, and a map by id, follow values that are added and removed: by the server, by file, over a
restart."""

import json

import anyio
import pytest

from rebaser.embedded.nats import EmbeddedNats
from rebaser_client import Derive, Match, RebaserClient, Remove, Set, Success, Update
from tests.support.commands import rebaser, rebaser_json
from tests.support.fleet import servers

# It takes half a minute, and other tests cover its parts: patterns in `property` and `spark`, files and restarts in
# this folder.
pytestmark = [pytest.mark.anyio, pytest.mark.spark, pytest.mark.long]

WS, CS = "patterns", "main"
TOTAL = {"op": "derive", "id": "total", "function": "sum", "inputs": {"values": ["fee", {"match": "cart/*/price"}]}}
PRICES = [
    {"op": "derive", "id": "prices", "function": "by_id", "inputs": {"values": {"match": "cart/*/price"}}},
    {
        "op": "derive",
        "id": "dear",
        "function": "cel",
        "inputs": {"prices": "prices"},
        "params": {"expr": "prices.filter(id, prices[id] >= 100)"},
    },
]


async def edited(client: RebaserClient, *updates: Update) -> object:
    """Send `updates`, and return the resulting value of `total`."""
    reply = await client.enqueue_updates_with_reply(WS, CS, updates, wait="derived", timeout=120)
    assert isinstance(reply.status, Success)
    return (await client.values(WS, CS))["total"].value


async def checkpointed(client: RebaserClient) -> None:
    with anyio.fail_after(120):
        async for commit in client.watch(WS, CS, after=0):
            if commit.checkpoint is not None:
                return


async def test_a_sum_over_a_pattern_follows_what_comes_and_goes(own_nats: EmbeddedNats, spark_url: str) -> None:
    url = own_nats.url
    settings = {"spark": spark_url, "checkpoint_bytes": 1024}
    async with RebaserClient.connect(url) as client:
        async with servers(url, "first", **settings) as [first]:  # type: ignore[arg-type]
            lines = [Set("fee", 1).to_wire(), Set("cart/1/price", 10).to_wire(), TOTAL, *PRICES]
            text = "\n".join(map(json.dumps, lines)).encode()
            await rebaser_json("enqueue", WS, CS, "--file", "-", "--wait", "derived", stdin=text, nats_url=url)
            assert await edited(client) == 11
            assert await edited(client, Set("cart/2/price", 100)) == 111
            assert await edited(client, Remove("cart/2/price")) == 11
            assert await edited(client, Set("cart/2/size", 5), Set("cart/2/x/price", 5)) == 11
            net = Derive("cart/9/price", "sum", {"all": Match("cart/2/**")})
            assert await edited(client, net, *(Set(f"shop/{at}", at) for at in range(200))) == 21
            await checkpointed(client)
            out = await rebaser("get", WS, CS, "--updates", nats_url=url)
            assert TOTAL | {"params": {}} in [json.loads(line) for line in out.stdout.splitlines()]
            before = await client.values(WS, CS)
            await first.kill()
        async with servers(url, "second", **settings):  # type: ignore[arg-type]
            assert await client.values(WS, CS) == before
            assert await edited(client, Set("cart/3/price", 1000)) == 1021
            found = await client.values(WS, CS)
            assert found["prices"].value == {"cart/1/price": 10, "cart/3/price": 1000, "cart/9/price": 10}
            assert found["dear"].value == ["cart/3/price"]
            assert await edited(client, Remove("cart/2/x/price")) == 1016
            await rebaser_json(
                *("enqueue", WS, "copy", "--file", "-", "--wait", "derived"), stdin=out.stdout.encode(), nats_url=url
            )
            assert await client.values(WS, "copy") == before
