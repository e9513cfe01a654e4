"""Servers that answer pings, and explanations of why change sets of a real installation wait."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio

from rebaser.pings import about_change_set, answer_pings, describe
from rebaser.server import Server
from rebaser.settings import Settings
from rebaser_client import RebaserClient
from rebaser_client.admin.explanations import Explanation
from rebaser_client.jetstream import JetStream
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects
from tests.support.contexts import context_of
from tests.support.owners import Engine, serving

KEY = ChangeSetKey("ws", "cs")
OF_MACHINE = ("server_busy", "slow_network")  # what a busy machine adds to the reasons
LIMIT = 150.0  # seconds; a bound against hanging


@asynccontextmanager
async def answering(
    js: JetStream, subjects: Subjects, engine: object = None, *, run: bool = True, **settings: Any
) -> AsyncIterator[None]:
    """Run a server that answers pings. Without `run`, it owns nothing."""
    engine = engine or Engine()
    quiet = {"sweep_interval": 600} | settings
    async with anyio.create_task_group() as group:
        if run:
            async with serving(js, subjects, engine, **quiet) as server:
                await _answer(group, server)
                yield
                group.cancel_scope.cancel()
        else:
            await _answer(group, Server(context_of(js, subjects, Settings(server_id="idle", **quiet), engine)))
            yield
            group.cancel_scope.cancel()


async def _answer(group: anyio.abc.TaskGroup, server: Server) -> None:
    context = server._context
    group.start_soon(answer_pings, context, partial(describe, server), partial(about_change_set, context, server))


Explain = Callable[..., Awaitable[Explanation]]


def explains(client: RebaserClient) -> Explain:
    """Return a function that explains a change set until the first reason has a certain code."""

    async def until(code: str, change_set: str = "cs") -> Explanation:
        said: list[str] = []
        try:
            with anyio.fail_after(LIMIT):
                while True:
                    told = await client.explain("ws", change_set)
                    said = [reason.code for reason in told.reasons]
                    if said[0] == code:
                        return told
        except TimeoutError:
            raise AssertionError(f"{said} in place of {code}") from None

    return until


async def explained(client: RebaserClient, *codes: str, also: Collection[str] = (), of: str = "cs") -> Explanation:
    """Repeat the call until it gives these reasons, in this order, twice in succession, and return the explanation.
    Reasons of `also` may follow them: an owner that tries again and again gives other ones at each moment."""
    said: list[str] = []
    right = 0
    try:
        with anyio.fail_after(LIMIT):
            while True:
                told = await client.explain("ws", of)
                said = [reason.code for reason in told.reasons if reason.code in codes or reason.code not in OF_MACHINE]
                begins = tuple(said[: len(codes)]) == codes
                right = right + 1 if begins and set(said[len(codes) :]) <= set(also) else 0
                if right == 2:
                    return told
    except TimeoutError:
        raise AssertionError(f"{said} in place of {list(codes)}") from None
