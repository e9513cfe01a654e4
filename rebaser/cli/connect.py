"""Opens the installation that a command talks to."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rebaser.doctor.examination import Stores
    from rebaser.settings import Settings
    from rebaser_client import RebaserClient
    from rebaser_client.admin.status import ServerInfo


def connect_client(
    nats: str, prefix: str, *, content_type: str = "application/cbor"
) -> AbstractAsyncContextManager["RebaserClient"]:
    """A client for the installation at `nats`; what has no option (the blob store) comes from the environment.

    Raises `NotConnectedError` if nobody answers there, `ConfigError` for an unusable setting.
    """
    from rebaser.cli.options import ACCESS_VALUES
    from rebaser.settings import load_settings

    return client_for(load_settings(nats_url=nats, prefix=prefix, **ACCESS_VALUES.get()), content_type=content_type)


def client_for(
    settings: "Settings", *, content_type: str = "application/cbor"
) -> AbstractAsyncContextManager["RebaserClient"]:
    """A client for the installation that a server with `settings` belongs to."""
    from rebaser_client import RebaserClient

    return RebaserClient.connect(
        settings.nats_url,
        prefix=settings.prefix,
        blobs=settings.blobs,
        inbox_prefix=settings.inbox_prefix,
        limits=settings.limits,
        content_type=content_type,
        check_formulas=False,  # commands check what is typed where it is typed
        **settings.access(),
    )


@asynccontextmanager
async def open_stores(settings: "Settings") -> AsyncIterator["Stores"]:
    """Streams and blobs of the installation that a server with `settings` belongs to."""
    from rebaser.doctor.examination import Stores
    from rebaser_client.blobs import open_blobs
    from rebaser_client.jetstream import Connection, JetStream
    from rebaser_core.subjects import Subjects

    subjects = Subjects(settings.prefix)
    async with Connection.connect(
        settings.nats_url,
        name="rebaser-doctor",
        inbox_prefix=settings.inbox_prefix,
        **settings.access(),
    ) as connection:
        js = JetStream(connection)
        yield Stores(js, subjects, open_blobs(settings.blobs, js, subjects.blobs_bucket))


async def ping_servers(nats: str, prefix: str, server: str | None, timeout: float) -> list["ServerInfo"]:  # noqa: ASYNC109 - silence is an answer here
    """Servers that answer a ping: as soon as one does, or `server` does if it is given; at most `timeout` seconds."""
    from rebaser.cli.options import ACCESS_VALUES
    from rebaser.settings import load_settings
    from rebaser_client.admin.status import ping
    from rebaser_client.jetstream import Connection
    from rebaser_core.subjects import Subjects

    settings = load_settings(nats_url=nats, prefix=prefix, **ACCESS_VALUES.get())
    found: list[ServerInfo] = []
    async with Connection.connect(
        settings.nats_url,
        name="rebaser-ping",
        inbox_prefix=settings.inbox_prefix,
        **settings.access(),
    ) as connection:
        left = timeout
        while left > 0 and not found:
            wait = min(0.25, left)
            left -= wait
            answers = await ping(connection, Subjects(settings.prefix), wait)
            found = [one for one in answers if server is None or one.id == server]
    return found
