"""Logs that tests damage: messages are read, changed, removed or added, and written back."""

from dataclasses import dataclass, replace
from typing import Any

import cbor2

from rebaser_client.blobs import JetStreamBlobs
from rebaser_client.jetstream import JetStream
from rebaser_client.jetstream.context import EXPECTED_LAST
from rebaser_core.commit import BlobRef, Commit, Kind
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import decode_commit, encode_commit, encode_delta
from rebaser_core.streams.subjects import Subjects


@dataclass(slots=True)
class Raw:
    """One message of a log."""

    headers: dict[str, str]
    data: bytes

    def commit(self) -> Commit:
        return decode_commit(self.headers, self.data)

    def change(self, **fields: Any) -> None:
        """Replace fields of the commit in the message."""
        self.headers, self.data = encode_commit(replace(self.commit(), **fields))


class DamagedLog:
    """The log of `key`, which is the only log of its stream. `messages` holds them by sequence; `store` writes them
    back."""

    def __init__(self, js: JetStream, subjects: Subjects, key: ChangeSetKey) -> None:
        self.js, self.subjects, self.key = js, subjects, key
        self.blobs = JetStreamBlobs(js, subjects.blobs_bucket)
        self.stream, self.subject = subjects.commits_stream, subjects.commits(key)
        self.messages: dict[int, Raw] = {}

    async def read(self) -> "DamagedLog":
        self.messages.clear()
        sequence = 1
        while (stored := await self.js.next(self.stream, self.subject, sequence)) is not None:
            headers = {name: text for name, text in stored.headers.items() if name != EXPECTED_LAST}
            self.messages[stored.sequence] = Raw(headers, stored.data)
            sequence = stored.sequence + 1
        return self

    def of(self, kind: Kind) -> list[int]:
        """Return the sequences of the commits of a kind."""
        return [sequence for sequence, raw in self.messages.items() if raw.commit().kind is kind]

    async def store(self) -> None:
        """Create the stream anew, with each message at its sequence. The messages in between count as deleted."""
        info = await self.js.stream_info(self.stream)
        await self.js.delete_stream(self.stream)
        first, last = (min(self.messages), max(self.messages)) if self.messages else (1, 0)
        await self.js.add_stream({**info.config, "first_seq": first})
        for sequence in range(first, last + 1):
            raw = self.messages.get(sequence, Raw({}, b"-"))
            ack = await self.js.publish(self.subject, raw.data, raw.headers)
            assert ack.sequence == sequence
            if sequence not in self.messages:
                await self.js.delete_message(self.stream, sequence)

    async def lose_blob(self, address: str) -> None:
        await self.js.purge(f"OBJ_{self.subjects.blobs_bucket}", self.blobs._meta_of(address))

    async def garble_blob(self, address: str) -> None:
        """Replace the blob at the address by other bytes."""
        found = await self.blobs._describe(address)
        assert found is not None
        chunks, stream = self.blobs._chunks_of(found.nuid), f"OBJ_{self.subjects.blobs_bucket}"
        await self.js.purge(stream, chunks)
        await self.js.publish(chunks, bytes(found.size))

    async def stands(self) -> tuple[int, int, int]:
        """Return numbers that change whenever the log, the blobs or the tasks are written to."""
        infos = [
            await self.js.stream_info(name)
            for name in (self.stream, f"OBJ_{self.subjects.blobs_bucket}", self.subjects.tasks_stream)
        ]
        return infos[0].last_sequence, infos[1].last_sequence, infos[2].last_sequence


def without_id(raw: Raw) -> None:
    """Remove the id from a result, as a defect of an earlier release did."""
    content = cbor2.loads(raw.data)
    content["v1"]["delta"]["computed"][0]["id"] = ""
    raw.data = cbor2.dumps(content)


async def garbage(log: DamagedLog) -> None:
    log.messages[4].data = b"\x00garbage"


async def delta_in_blob(log: DamagedLog) -> str:
    data = encode_delta(log.messages[5].commit().delta)
    address = await log.blobs.put(data)
    log.messages[5].change(delta=(), delta_blob=BlobRef(address, len(data)))
    return address
