"""A program as a user writes it. `tests/unit/test_typing.py` checks it with `mypy --strict`; it is never run."""

from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping, Sequence

import numpy as np
from pydantic import BaseModel

from rebaser_client import (
    BlockingRebaserClient,
    ChangeSetState,
    ClientClosedError,
    Commit,
    Computed,
    ConfigError,
    Conflict,
    Derive,
    Item,
    Json,
    Limits,
    Match,
    NotConnectedError,
    NotReadyError,
    QueueFull,
    RebaserClient,
    RebaserError,
    Recompute,
    Ref,
    Remove,
    RequestConflicts,
    RequestRejected,
    RequestTimeout,
    Set,
    State,
    Success,
    Template,
    TooLarge,
    TransientError,
    UnprocessableError,
    Unset,
    UnsupportedVersion,
    Update,
    Value,
    ValueNotReady,
)


def edits(names: list[str], counts: dict[str, int], nested: dict[str, list[float]]) -> list[Update]:
    rows: Sequence[Mapping[str, float | None]] = [{"a": 1.0}, {"a": None}]
    updates: list[Update] = [Set("names", names), Set("counts", counts), Set("nested", nested), Set("rows", rows)]
    updates += [Set("pair", (1, "x")), Set("range", range(3)), Set("ordered", OrderedDict(a=1))]
    updates += [Set("i", np.int64(1)), Set("f", np.float32(1)), Set("b", np.bool_(True)), Set("none", None)]
    inputs: dict[str, list[str]] = {"values": names}
    given: dict[str, str] = {"x": "a"}
    weights: dict[str, list[int]] = {"weights": [1]}
    updates += [Derive("sum", "sum", inputs), Derive("cel", "cel", given, {"expr": "x"})]
    updates += [Derive("all", "sum", {"values": Match("a/*")}, weights), Unset("u"), Remove("r")]
    return updates


async def watched(client: RebaserClient) -> None:
    commits: AsyncGenerator[Commit, None] = client.watch("ws", "cs")
    async for commit in commits:
        computed: list[Computed] = [one for one in commit.delta if isinstance(one, Computed)]
        if computed:
            await commits.aclose()


async def main() -> str:
    async with RebaserClient.connect("nats://127.0.0.1:4222", limits=Limits(max_updates=10)) as client:
        try:
            response = await client.enqueue_updates_with_reply(
                "ws", "cs", edits(["a"], {"b": 1}, {"c": [1.0]}), wait="derived", recompute=Recompute("f")
            )
        except RequestTimeout as late:
            commit: int | None = late.commit
            return f"{late.request_id} {commit}"
        except RequestConflicts as parted:
            found: tuple[Conflict, ...] = parted.conflicts
            return ", ".join(one.id for one in found)
        except RequestRejected as rejected:
            return rejected.message
        except QueueFull as full:
            return f"{full.retry_after:.1f}"
        except (TooLarge, UnprocessableError, NotReadyError, NotConnectedError, TransientError, UnsupportedVersion):
            return "no"
        except (ClientClosedError, ConfigError, RebaserError) as error:
            return error.code
        assert isinstance(response.status, Success)
        value: Value | None = await client.value("ws", "cs", "a")
        shown: Json = value.value if value is not None and value.state is State.OK else None
        state: ChangeSetState = await client.state("ws", "cs")
        items: list[Item] = await client.items("ws", "cs", "a/*", after="a/1", limit=10)
        prices: dict[str, Value] = await client.values("ws", "cs", "cart/*/price")
        return f"{shown} {state.last} {len(items)} {len(prices)} {response.status.commit}"


async def notebook() -> None:
    client = await RebaserClient.open(prefix="x")
    await client.aclose()


PRICE = Ref("price", float)
NAMES: Ref[list[str]] = Ref("names", list[str])
GROSS = Ref("gross", float)
PRICES = Template("product/{product}/price", float)


class Cart(BaseModel):
    lines: list[str]


CART = Ref("cart", Cart)


def typed(client: BlockingRebaserClient) -> str:
    updates: list[Update] = [PRICE.set(9.5), PRICE.set(9), NAMES.set(["a"])]
    updates += [GROSS.derive("sum", {"values": [PRICE, "other", Match("a/*")]}), GROSS.derive("sum", {"x": PRICE})]
    updates += [Set(PRICE, 9.5), Set(PRICE, 9), Set(NAMES, ["a"]), Set(CART, Cart(lines=[])), Set("any", 1)]
    updates += [Derive(GROSS, "sum", {"x": PRICE, "all": [PRICE, "id"], "m": PRICES.match()}), Derive(NAMES, "f")]
    updates += [Set(PRICES.ref(product="tea"), 1.5), Derive("text", "f", {"x": (PRICE, GROSS)}, {"p": [1]})]
    lines: list[str] = client.get("ws", "cs", CART).lines
    one: float = client.get("ws", "cs", PRICES.ref(product=lines[0]))
    client.enqueue_updates("ws", "cs", [*updates, Set(GROSS, one)])
    try:
        price: float = client.get("ws", "cs", PRICE)
    except ValueNotReady as error:
        state: State | None = error.state
        return f"{error.id} {state} {error.error and error.error.origin}"
    return f"{price + 1} {client.get('ws', 'cs', NAMES)[0].upper()}"


async def typed_asynchronously(client: RebaserClient) -> float:
    return await client.get("ws", "cs", PRICE) + 1
