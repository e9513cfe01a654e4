"""Records and checks which installations use a blob store.

A garbage collection knows only the messages of its own installation. If another installation used the same bucket or
folder, all of that installation's blobs would count as garbage. To prevent this, each server and each collection leaves
a note in the store, and a collection deletes nothing if it finds the note of another installation.

Invariant: an installation is identified by the name and the creation time of its stream of commits. If that stream is
deleted and created again, the installation counts as another one.
"""

import anyio
import structlog

from rebaser.runtime.context import Context
from rebaser_client.blobs import CollectableBlobs, open_collectable
from rebaser_client.jetstream.infos import StreamInfo
from rebaser_core.errors import ConfigError, RebaserError

log = structlog.get_logger(__name__)

PAUSE = 60.0  # seconds until another attempt to leave the note


async def check_alone(blobs: CollectableBlobs, info: StreamInfo, *, register: bool) -> None:
    """Raise `ConfigError` if another installation uses the store `blobs`. `info` describes the stream of commits of
    this installation.

    If `register` is true, first leave the note of this installation in the store.
    """
    name = _name(info)
    if register:
        await blobs.register(name)
    others = {place: other for place, other in (await blobs.installations()).items() if other != name}
    if others:
        place, other = min(others.items())
        raise ConfigError(
            f"another installation also uses this blob store ({other[:200]}), and its blobs would be deleted: give "
            f"each installation its own store (REBASER_BLOBS); if that installation does not exist any more, delete "
            f"{place} in the store",
            code="blob_store_shared",
        )


async def leave_note(context: Context) -> None:
    """Leave the note of this installation in its blob store. Retry until that succeeds."""
    if context.settings.blobs is None:  # each installation has its own bucket in NATS
        return None
    blobs = open_collectable(context.settings.blobs, context.js, context.subjects.blobs_bucket)
    while True:
        try:
            return await blobs.register(_name(await context.js.stream_info(context.subjects.commits_stream)))
        except RebaserError as error:
            log.warning("gc_note_failed", code=error.code, reason=error.message)
        await anyio.sleep(PAUSE)


def _name(info: StreamInfo) -> str:
    return f"stream {info.name} of {info.created}"
