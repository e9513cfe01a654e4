"""Backs up and restores a stream through the API of JetStream, as `nats stream backup` and `restore` do."""

import json
from dataclasses import dataclass
from typing import Any

from nats.aio.client import Client

TIMEOUT = 60.0
CHUNK = 64 * 1024


@dataclass(frozen=True)
class StreamBackup:
    """A backup of a stream: its configuration, its state, and its messages and consumers in the archive that NATS
    makes."""

    config: dict[str, Any]
    state: dict[str, Any]
    chunks: list[bytes]


async def ask(connection: Client, subject: str, **fields: Any) -> dict[str, Any]:
    answer = json.loads((await connection.request(subject, json.dumps(fields).encode(), timeout=TIMEOUT)).data)
    assert "error" not in answer, answer["error"]
    return answer  # type: ignore[no-any-return]


async def back_up(connection: Client, stream: str) -> StreamBackup:
    inbox = connection.new_inbox()
    arriving = await connection.subscribe(inbox)
    about = await ask(connection, f"$JS.API.STREAM.SNAPSHOT.{stream}", deliver_subject=inbox, chunk_size=CHUNK)
    chunks = []
    while (message := await arriving.next_msg(timeout=TIMEOUT)).data:
        chunks.append(message.data)
        if message.reply:
            await message.respond(b"")
    await arriving.unsubscribe()
    return StreamBackup(about["config"], about["state"], chunks)


async def restore(connection: Client, backup: StreamBackup) -> None:
    subject = f"$JS.API.STREAM.RESTORE.{backup.config['name']}"
    target = (await ask(connection, subject, config=backup.config, state=backup.state))["deliver_subject"]
    for chunk in backup.chunks:
        await connection.request(target, chunk, timeout=TIMEOUT)
    done = json.loads((await connection.request(target, b"", timeout=TIMEOUT)).data)
    assert "error" not in done, done["error"]
