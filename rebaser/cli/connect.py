"""Connects commands to an installation, and pings its servers."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rebaser.client_settings import ClientSettings
    from rebaser.doctor.examination import Stores
    from rebaser_client import RebaserClient
    from rebaser_client.admin.servers import ServerInfo
    from rebaser_client.blobs import BlobStore
    from rebaser_client.jetstream import JetStream
    from rebaser_client.log.positions import At
    from rebaser_core.ids import ChangeSetKey
    from rebaser_core.state.change_set import ChangeSetState
    from rebaser_core.streams.subjects import Subjects

FIRST_ROUND = 0.25  # seconds to wait for the answers to the first ping
PING_AGAIN = 0.5  # seconds from one ping to the next, until a wanted server answers


def connect_client(
    nats: str, prefix: str, *, content_type: str = "application/cbor"
) -> AbstractAsyncContextManager["RebaserClient"]:
    """Return a client of the installation at `nats`.

    Settings that have no option, such as the blob store, come from the environment. Raise `NotConnectedError` if NATS
    cannot be reached, and `ConfigError` if a setting is invalid.
    """
    from rebaser.cli.options import ACCESS_VALUES
    from rebaser.client_settings import load_client_settings

    return client_for(
        load_client_settings(nats_url=nats, prefix=prefix, **ACCESS_VALUES.get()), content_type=content_type
    )


def client_for(
    settings: "ClientSettings", *, content_type: str = "application/cbor"
) -> AbstractAsyncContextManager["RebaserClient"]:
    """Return a client of the installation that `settings` describe.

    Raise `ConfigError` if servers would not reply to this client, because these are the settings of a server.
    """
    from rebaser_client import RebaserClient

    settings.check_client()

    return RebaserClient.connect(
        settings.nats_url,
        prefix=settings.prefix,
        blobs=settings.blobs,
        inbox_prefix=settings.inbox_prefix,
        limits=settings.limits,
        content_type=content_type,
        check_formulas=False,  # commands check formulas when they parse them
        **settings.access(),
    )


async def load_state(
    nats: str, prefix: str, key: "ChangeSetKey", *, at: "At | None", ids: list[str] | None
) -> "ChangeSetState":
    """Return the state of `key`, as `RebaserClient.state` does.

    Raise the same errors as `connect_client` and `RebaserClient.state`. `rebaser get` takes a fifth less processor time
    with this function than with a client, which imports much that reading does not need.
    """
    from rebaser.cli.options import ACCESS_VALUES
    from rebaser.client_settings import load_client_settings
    from rebaser_client.log.reader import StateLoader
    from rebaser_client.requests.sender import translate_missing_stream

    settings = load_client_settings(nats_url=nats, prefix=prefix, **ACCESS_VALUES.get())
    settings.check_client()
    async with _open(settings, "rebaser-get") as (js, subjects, blobs):
        loader = StateLoader(js, subjects, blobs)
        with translate_missing_stream():
            return await loader.load_values(key, ids, at) if ids is not None else (await loader.load(key, at)).state


@asynccontextmanager
async def open_stores(settings: "ClientSettings") -> AsyncIterator["Stores"]:
    """Yield the streams and the blob store of the installation that `settings` describe."""
    from rebaser.doctor.examination import Stores

    async with _open(settings, "rebaser-doctor") as (js, subjects, blobs):
        yield Stores(js, subjects, blobs)


@asynccontextmanager
async def _open(settings: "ClientSettings", name: str) -> AsyncIterator[tuple["JetStream", "Subjects", "BlobStore"]]:
    from rebaser_client.blobs import open_blobs
    from rebaser_client.jetstream import Connection, JetStream
    from rebaser_core.streams.subjects import Subjects

    subjects = Subjects(settings.prefix)
    async with Connection.connect(
        settings.nats_url, name=name, inbox_prefix=settings.inbox_prefix, **settings.access()
    ) as connection:
        js = JetStream(connection)
        yield js, subjects, open_blobs(settings.blobs, js, subjects.blobs_bucket)


async def ping_servers(nats: str, prefix: str, server: str | None, timeout: float) -> list["ServerInfo"]:  # noqa: ASYNC109 - no answer within `timeout` is a result
    """Return the servers that answer a ping. Wait for the first answer or, if `server` is given, for this server's
    answer.

    Return an empty list if no such answer arrives within `timeout` seconds.
    """
    from rebaser.cli.options import ACCESS_VALUES
    from rebaser.client_settings import load_client_settings
    from rebaser_client.admin.servers import ping
    from rebaser_client.nats.connection import Connection
    from rebaser_core.streams.subjects import Subjects

    settings = load_client_settings(nats_url=nats, prefix=prefix, **ACCESS_VALUES.get())

    def wanted(answers: list["ServerInfo"]) -> list["ServerInfo"]:
        return [answer for answer in answers if server in (None, answer.id)]

    async with Connection.connect(
        settings.nats_url,
        name="rebaser-ping",
        inbox_prefix=settings.inbox_prefix,
        **settings.access(),
    ) as connection:
        servers = await ping(
            connection,
            Subjects(settings.prefix),
            min(FIRST_ROUND, timeout),
            patience=timeout,
            enough=lambda answers: bool(wanted(answers)),
            again=PING_AGAIN,
        )
    return wanted(servers)
