"""The output of a starting nats-server is understood, however it is cut into pieces."""

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from rebaser.embedded.nats import EmbeddedNats, _Ready

LOG = (
    b"[1] 2026/01/01 00:00:00.0 [INF] Listening for client connections on 127.0.0.1:4567\n"
    b"[1] 2026/01/01 00:00:00.0 [INF] Server is ready\n"
    b"[1] 2026/01/01 00:00:00.0 [INF] and more\n"
)


@pytest.mark.anyio
@pytest.mark.parametrize("size", [1, 7, 50, 100, 1000])
async def test_a_line_is_read_in_whatever_pieces_it_comes(tmp_path: Path, size: int) -> None:
    async def stderr() -> AsyncIterator[bytes]:
        for start in range(0, len(LOG), size):
            yield LOG[start : start + size]

    async def wait() -> int:
        return 0

    async def aclose() -> None:
        """Do nothing: there is nothing to close."""

    process = SimpleNamespace(stderr=stderr(), wait=wait, aclose=aclose)
    server, ready, exited = EmbeddedNats(cast("Any", None), tmp_path, None, {}), _Ready(), anyio.Event()
    await server._watch(cast("Any", process), ready, exited)
    assert (ready.port, ready.problem, exited.is_set()) == (4567, None, True)
    assert (tmp_path / "nats-server.log").read_bytes() == LOG
