"""The type of a case, and what cases share: streams, consumers, waiting."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio
import pytest

from rebaser_client.jetstream import ApiError, JetStream

T = TypeVar("T")
Case = Callable[[JetStream, str], Awaitable[None]]
CASES: list[Case] = []
NANOS = 1_000_000_000


def case(function: Case) -> Case:
    CASES.append(function)
    return function


def config(name: str, **more: object) -> dict[str, Any]:
    base = {"name": name, "subjects": [f"{name}.>"], "storage": "memory", "num_replicas": 1, "discard": "new"}
    return {**base, "max_consumers": 100_000, **more}


def queue(name: str) -> dict[str, Any]:
    return config(name, retention="workqueue", max_msgs_per_subject=1, discard_new_per_subject=True)


def worker(name: str, ack_wait: float = 30.0) -> dict[str, Any]:
    return {
        "durable_name": "w",
        "name": "w",
        "ack_policy": "explicit",
        "ack_wait": int(ack_wait * NANOS),
        "max_deliver": -1,
        "max_ack_pending": -1,
        "deliver_policy": "all",
        "filter_subject": f"{name}.*",
    }


async def until(ask: Callable[[], Awaitable[T]], good: Callable[[T], bool]) -> T:
    while not good(answer := await ask()):  # noqa: ASYNC110 - only asking tells
        await anyio.sleep(0.02)
    return answer


async def refusal(awaited: Awaitable[object]) -> ApiError:
    with pytest.raises(ApiError) as refused:
        await awaited
    return refused.value
