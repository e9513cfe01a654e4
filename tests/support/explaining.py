"""Explains why change sets wait, on a server in this process that answers pings."""

from collections.abc import AsyncIterator, Awaitable, Callable
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
from rebaser_core.streams.subjects import Subjects
from tests.support.contexts import context_of
from tests.support.owners import Engine, serving


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
            with anyio.fail_after(60):
                while True:
                    told = await client.explain("ws", change_set)
                    said = [reason.code for reason in told.reasons]
                    if said[0] == code:
                        return told
        except TimeoutError:
            raise AssertionError(f"{said} in place of {code}") from None

    return until
