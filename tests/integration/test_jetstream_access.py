"""Identity and trust in NATS: TLS, client certificates, nkeys, users, and the errors if one is wrong."""

import json
import os
import ssl
import sys
from pathlib import Path
from typing import Any, cast

import anyio
import nkeys
import pytest
import trustme
import typer
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from nacl.signing import SigningKey

from rebaser.cli.app import app
from rebaser.cli.errors import explain
from rebaser.embedded.nats import EmbeddedNats, embedded_nats
from rebaser.settings import Settings, load_settings
from rebaser_client import NotAuthorized, NotConnectedError, NotSecure, RebaserClient
from rebaser_client.jetstream import Access, Connection, NoRespondersError
from rebaser_core.errors import ConfigError

pytestmark = pytest.mark.anyio

SECRET = "s3cret-t0ken"


class Files:
    """Certificates of a private authority, as PEM files."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        self.ca, self.cert, self.key, self.both = (folder / name for name in ("ca", "cert", "key", "both"))
        self.server_cert, self.server_key = folder / "server_cert", folder / "server_key"
        authority.cert_pem.write_to_path(self.ca)
        server, client = authority.issue_cert("127.0.0.1"), authority.issue_cert("client@example.org")
        server.cert_chain_pems[0].write_to_path(self.server_cert)
        server.private_key_pem.write_to_path(self.server_key)
        client.cert_chain_pems[0].write_to_path(self.cert)
        client.private_key_pem.write_to_path(self.key)
        client.private_key_and_cert_chain_pem.write_to_path(self.both)
        key = load_pem_private_key(self.key.read_bytes(), None)
        how = BestAvailableEncryption(b"passphrase")
        (folder / "encrypted").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, how))

    def tls(self, **more: Any) -> dict[str, Any]:
        """Return the `tls` part of a server's configuration."""
        return {"cert_file": str(self.server_cert), "key_file": str(self.server_key), **more}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("tls"))


def tls(server: EmbeddedNats) -> str:
    return server.url.replace("nats://", "tls://")


async def works(url: str, **access: Any) -> None:
    async with Connection.connect(url, **access) as connection:
        with pytest.raises(NoRespondersError):
            await connection.request("nobody")


# -- TLS ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", ["tls://{0}", "tls://{0},nats://{0}", "nats://{0}"])
async def test_a_server_without_tls_hears_nothing_from_who_wants_tls(asked: str, files: Files) -> None:
    """An attacker in between could have removed the offer of TLS from the INFO line."""
    heard = bytearray()
    info = {"server_id": "x", "version": "2.15.1", "max_payload": 1048576, "auth_required": True, "headers": True}

    async def serve(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await stream.send(b"INFO %b\r\n" % json.dumps(info).encode())
            try:
                async for data in stream:
                    heard.extend(data)
            except anyio.BrokenResourceError:
                pass

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, serve)
        address = f"127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}"
        url = asked.format(address)
        with pytest.raises(NotSecure, match="offers no TLS"):
            await works(url, token=SECRET, tls_ca=files.ca if url.startswith("nats://") else None)
        group.cancel_scope.cancel()
    assert bytes(heard) == b""


@pytest.mark.parametrize("asked", ["tls", "tls_ca", "tls_cert", "tls_hostname"])
async def test_a_websocket_without_tls_is_not_even_tried_by_who_wants_tls(
    asked: str, files: Files, unused_port: int
) -> None:
    options = {"tls": ssl.create_default_context(), "tls_ca": files.ca, "tls_cert": files.both, "tls_hostname": "nats"}
    with pytest.raises(NotSecure, match="offers no TLS"):
        await works(f"ws://127.0.0.1:{unused_port}", token=SECRET, **{asked: options[asked]})


@pytest.mark.filterwarnings("ignore:parameter 'timeout' of type:DeprecationWarning")  # a warning of nats-py
async def test_a_websocket_with_tls(files: Files, tmp_path: Path, unused_port: int) -> None:
    websocket = {"listen": f"127.0.0.1:{unused_port}", "tls": files.tls()}
    async with embedded_nats(tmp_path, websocket=websocket, authorization={"token": SECRET}) as server:
        await works(f"wss://127.0.0.1:{unused_port}", token=SECRET, tls_ca=files.ca)
        with pytest.raises(NotConnectedError):
            await works(f"wss://127.0.0.1:{unused_port}", token=SECRET)
        with pytest.raises(NotConnectedError):
            await works(f"wss://127.0.0.1:{server.port}", token=SECRET, tls_ca=files.ca)


async def test_a_missing_package_for_websockets_is_named(unused_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nats.aio.transport.aiohttp", None)
    with pytest.raises(ConfigError, match="aiohttp"):
        await works(f"wss://127.0.0.1:{unused_port}")


async def test_tls_with_an_authority_of_our_own(
    files: Files, tmp_path: Path, unused_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with embedded_nats(tmp_path, unused_port, tls=files.tls(), authorization={"token": SECRET}) as server:
        await works(tls(server), token=SECRET, tls_ca=files.ca)
        await works(server.url, token=SECRET, tls_ca=files.ca)
        async with Connection.connect(tls(server), token=SECRET, tls_ca=files.ca) as connection:
            back = anyio.Event()
            connection.on_reconnect(back.set)
            await server.kill()
            await server.start()
            await back.wait()
            with pytest.raises(NoRespondersError):
                await connection.request("nobody")
    assert not [record for record in caplog.records if "eof_received" in record.getMessage()]


PROGRAM = """
import sys
from pathlib import Path
import anyio
from rebaser_client.jetstream import Connection

async def main():
    async with Connection.connect(sys.argv[1], tls_ca=Path(sys.argv[2])) as connection:
        back = anyio.Event()
        connection.on_reconnect(back.set)
        print("connected\\n", end="", flush=True)
        await back.wait()

anyio.run(main)
"""


async def test_a_server_that_goes_away_is_no_noise_in_a_program(files: Files, tmp_path: Path, unused_port: int) -> None:
    """If no logging is configured, Python would write warnings to stderr by itself."""
    async with embedded_nats(tmp_path, unused_port, tls=files.tls()) as server:
        command = [sys.executable, "-c", PROGRAM, tls(server), str(files.ca)]
        with anyio.fail_after(240):
            async with await anyio.open_process(command) as program:
                assert program.stdout is not None
                assert program.stderr is not None
                assert await program.stdout.receive() == b"connected\n"
                await server.kill()
                await server.start()
                said = b"".join([part async for part in program.stderr])
                assert (await program.wait(), said) == (0, b"")


async def test_a_large_message_passes_through_tls(files: Files, tmp_path: Path) -> None:
    async with (
        embedded_nats(tmp_path, tls=files.tls()) as server,
        Connection.connect(tls(server), tls_ca=files.ca) as connection,
        connection.subscribe("x") as messages,
    ):
        data = os.urandom(1024 * 1024 - 100)
        for _ in range(4):
            await connection.publish("x", data)
        for _ in range(4):
            assert (await anext(messages)).data == data


async def test_tls_is_used_where_it_is_offered_and_wanted(files: Files, tmp_path: Path) -> None:
    async with embedded_nats(tmp_path, tls=files.tls(), allow_non_tls=True) as server:
        await works(server.url)
        await works(tls(server), tls_ca=files.ca)
        with pytest.raises(NotSecure, match="not trusted"):
            await works(tls(server))


async def test_a_certificate_that_nobody_vouches_for_is_refused(files: Files, tmp_path: Path) -> None:
    async with embedded_nats(tmp_path, tls=files.tls()) as server:
        for url in (server.url, tls(server)):
            with pytest.raises(NotSecure, match="not trusted: unable to get local issuer"):
                await works(url, token=SECRET)
        with pytest.raises(NotSecure, match=r"not trusted: .*mismatch.*not valid for 'nats.example.org'"):
            await works(tls(server), tls_ca=files.ca, tls_hostname="nats.example.org")
        await works(tls(server).replace("127.0.0.1", "localhost"), tls_ca=files.ca, tls_hostname="127.0.0.1")


async def test_a_client_certificate_is_who_we_are(files: Files, tmp_path: Path) -> None:
    users = [{"user": "client@example.org"}]
    config = files.tls(ca_file=str(files.ca), verify_and_map=True)
    async with embedded_nats(tmp_path, tls=config, authorization={"users": users}) as server:
        await works(tls(server), tls_ca=files.ca, tls_cert=files.cert, tls_key=files.key)
        await works(tls(server), tls_ca=files.ca, tls_cert=files.both)
        with pytest.raises(NotSecure, match="client certificate"):
            await works(tls(server), tls_ca=files.ca)


# -- identity ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def seed() -> bytes:
    return bytes(nkeys.encode_seed(SigningKey.generate().encode(), nkeys.PREFIX_BYTE_USER))


async def test_an_nkey_is_who_we_are(seed: bytes, tmp_path: Path) -> None:
    public = nkeys.from_seed(bytearray(seed)).public_key.decode()
    file = tmp_path / "user.nk"
    file.write_bytes(seed + b"\n")
    async with embedded_nats(tmp_path / "nats", authorization={"users": [{"nkey": public}]}) as server:
        await works(server.url, nkey=file)
        file.write_bytes(nkeys.encode_seed(SigningKey.generate().encode(), nkeys.PREFIX_BYTE_USER))
        with pytest.raises(NotAuthorized):
            await works(server.url, nkey=file)


@pytest.mark.parametrize("access", [{}, {"token": "wrong-" + SECRET}, {"user": "me", "password": SECRET}])
async def test_who_is_refused_hears_so_and_what_to_do(access: Access, tmp_path: Path) -> None:
    async with embedded_nats(tmp_path, authorization={"token": "right"}) as server:
        with pytest.raises(NotAuthorized, match="Authorization Violation") as refused:
            await works(server.url, **access)
    explained = explain(refused.value)
    assert explained is not None
    assert SECRET not in explained[0]
    assert "rebaser dev" not in explained[0]
    assert "REBASER_NATS_TOKEN" in explained[0]


async def test_that_one_server_refuses_us_says_more_than_that_another_is_away(tmp_path: Path, unused_port: int) -> None:
    async with embedded_nats(tmp_path, authorization={"token": "right"}) as server:
        for _ in range(4):  # in any order
            with pytest.raises(NotAuthorized):
                await works(f"{server.url},127.0.0.1:{unused_port}", token="wrong")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"user": "me"}, "a NATS user needs a password"),
        ({"password": SECRET}, "a NATS password needs a user"),
        ({"user": "me", "password": SECRET, "token": SECRET}, "the NATS options token and user are both given"),
        ({"tls_key": "key"}, "without its certificate"),
        ({"tls_ca": "absent"}, "there is no file of TLS authorities .*absent"),
        ({"tls_ca": "key"}, "key contains no TLS certificate"),
        ({"tls_cert": "cert", "tls_key": "server_key"}, "cert does not belong to its key"),
        ({"tls_cert": "cert"}, "cert cannot be read with its key"),
        ({"tls_cert": "cert", "tls_key": "absent"}, "there is no TLS key .*absent"),
        ({"tls_cert": "cert", "tls_key": "encrypted"}, "encrypted is encrypted"),
        ({"nkey": "absent"}, "there is no nkey file .*absent"),
        ({"nkey": "secret"}, "is not a file with the seed of an nkey"),
        ({"creds": "secret"}, "is not a NATS credentials file"),
        ({"creds": "."}, "cannot be read"),
        ({"domain": "a.b"}, "'a.b' cannot be a JetStream domain"),
    ],
)
async def test_options_that_cannot_be_are_refused_before_anybody_is_asked(
    given: dict[str, str], says: str, files: Files, unused_port: int
) -> None:
    folder = files.ca.parent
    (folder / "secret").write_text(SECRET)
    access = {
        name: value if name in ("user", "password", "token", "domain") else folder / value
        for name, value in given.items()
    }
    with pytest.raises(ConfigError, match=says) as refused:
        await works(f"nats://127.0.0.1:{unused_port}", **access)
    assert SECRET not in refused.value.message


# -- settings, client, command line ------------------------------------------------------------------------------------


async def test_the_client_takes_all_of_it(files: Files, tmp_path: Path) -> None:
    users = [{"user": "me", "password": SECRET}]
    async with embedded_nats(tmp_path, tls=files.tls(), authorization={"users": users}) as server:
        async with RebaserClient.connect(tls(server), user="me", password=SECRET, tls_ca=files.ca) as client:
            assert client.dead_letters
        with pytest.raises(NotConnectedError):
            async with RebaserClient.connect(tls(server), user="me", password=SECRET):
                pass


def test_settings_show_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REBASER_NATS_URL", f"nats://me:{SECRET}@host")
    monkeypatch.setenv("REBASER_NATS_PASSWORD", SECRET)
    monkeypatch.setenv("REBASER_NATS_TOKEN", SECRET)
    settings = load_settings(nats_user="me")
    assert settings.access()["password"] == SECRET
    assert SECRET not in repr(settings)
    assert SECRET not in str(settings)
    embedded = settings.embedded("nats://127.0.0.1:1")
    assert not [value for value in embedded.access().values() if value is not None]


def test_every_option_of_a_connection_is_a_setting() -> None:
    for name in Access.__annotations__.keys() - {"tls"}:
        assert f"nats_{name}" in Settings.model_fields, name


@pytest.mark.parametrize("name", ["bench", "doctor", "enqueue", "get", "ping", "recompute", "serve", "status", "tail"])
def test_every_command_takes_them_all(name: str) -> None:
    assert not missing(commands()[name])


@pytest.mark.parametrize("name", ["list", "show", "redrive", "drop"])
def test_every_command_about_dead_letters_takes_them_all(name: str) -> None:
    assert not missing(commands()["dlq"].commands[name])


def commands() -> dict[str, Any]:
    return cast("Any", typer.main.get_command(app)).commands  # type: ignore[no-any-return]


def missing(command: Any) -> set[str]:
    known = {(option, one.envvar) for one in command.params for option in one.opts if option.startswith("--nats-")}
    wanted = Access.__annotations__.keys() - {"tls"}
    return {(f"--nats-{name.replace('_', '-')}", f"REBASER_NATS_{name.upper()}") for name in wanted} - known  # type: ignore[return-value]


async def test_a_command_reaches_a_server_with_tls_and_is_told_what_is_wrong(files: Files, tmp_path: Path) -> None:
    users = [{"user": "me", "password": SECRET}]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("REBASER_")}

    async def run(*words: str, **more: str) -> tuple[int, str]:
        done = await anyio.run_process([sys.executable, "-m", "rebaser", *words], check=False, env=environment | more)
        said = (done.stdout + done.stderr).decode()
        assert SECRET not in said
        return done.returncode, said

    async with embedded_nats(tmp_path, tls=files.tls(), authorization={"users": users}) as server:
        where = ["--nats", tls(server), "--nats-tls-ca", str(files.ca)]
        code, said = await run("ping", *where, "--timeout", "0.1", "--nats-user", "me", REBASER_NATS_PASSWORD=SECRET)
        assert (code, "no server answered" in said) == (1, True), said  # the certificates were accepted
        code, said = await run("ping", *where, REBASER_NATS_TOKEN="wrong")
        assert code == 1
        assert "--nats-user" in said
        assert "rebaser dev" not in said


# -- secrets in files, and TLS before anything else --------------------------------------------------------------------


@pytest.mark.parametrize("name", ["password", "token"])
async def test_a_secret_in_a_file_is_read_again_for_each_connection(name: str, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    user = {"user": "joe"} if name == "password" else {}
    given: Any = {**user, f"{name}_file": file}
    async with embedded_nats(tmp_path / "nats", authorization={**user, name: SECRET}) as nats:
        for text in (None, b"", b" \n", b"\xff\xfe"):
            if text is not None:
                file.write_bytes(text)
            with pytest.raises(ConfigError, match=str(file)):
                await works(nats.url, **given)
        file.write_text("wrong")
        with pytest.raises(NotAuthorized):
            await works(nats.url, **given)
        file.write_text(f"{SECRET}\n")
        await works(nats.url, **given)
        with pytest.raises(ConfigError, match=f"{name} and {name}_file are both given"):
            await works(nats.url, **given, **{name: SECRET})
        settings: Any = {"nats_url": nats.url, "nats_user": user.get("user"), f"nats_{name}_file": file}
        await works(nats.url, **load_settings(**settings).access())


async def test_tls_begins_before_the_server_says_anything(files: Files, tmp_path: Path) -> None:
    async with embedded_nats(tmp_path, tls=files.tls(handshake_first=True)) as server:
        first = load_settings(nats_tls_ca=files.ca, nats_tls_first="true").access()
        await works(server.url, **first)
        with pytest.raises(NotConnectedError):
            await works(server.url, tls_ca=files.ca)
    async with embedded_nats(tmp_path / "plain") as server:
        with pytest.raises(NotConnectedError):
            await works(server.url, **first)
