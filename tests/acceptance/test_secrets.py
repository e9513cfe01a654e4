"""No secret of the settings is in anything that an installation shows: logs, arguments of processes, probes, metrics,
answers to pings, and what commands and the console print."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rebaser.cli.connect import client_for
from rebaser.console import server as console_server
from rebaser.console.access.options import ConsoleOptions, accepted_hosts
from rebaser.embedded.nats import embedded_nats
from rebaser.ops.address import listen
from rebaser.settings import Settings, load_settings
from rebaser_client.jetstream import Connection
from rebaser_core.encoding.envelope import REPLY_INBOX
from tests.support.commands import rebaser
from tests.support.fleet import launched
from tests.support.http import ask, until
from tests.support.web_console import WebConsole

pytestmark = pytest.mark.anyio

SECRET = "planted-5ecret"  # part of each secret
PASSWORD, TOKEN = f"{SECRET}-password", f"{SECRET}-token"
WAYS = ("password", "password_file", "token", "token_file", "url")
SPARK = f"sc://127.0.0.1:1/;use_ssl=true;token={SECRET}-spark"


def secrets_of(way: str, url: str, folder: Path) -> dict[str, Any]:
    """Return settings with which a client logs in to NATS, and the secret for Spark."""
    given = {"nats_url": url, "spark": SPARK}
    for name, secret in (("password", PASSWORD), ("token", TOKEN)):
        if way == f"{name}_file":
            (folder / name).write_text(secret)
            given |= {f"nats_{name}_file": str(folder / name)}
        elif way == name:
            given |= {f"nats_{name}": secret}
    if way.startswith("password"):
        given["nats_user"] = "joe"
    if way == "url":
        given["nats_url"] = url.replace("nats://", f"nats://joe:{PASSWORD}@")
    return given


def arguments() -> Iterator[str]:
    """Yield the arguments of all processes of this machine, as `ps` shows them."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # the process has ended


def test_settings_with_secrets_show_none() -> None:
    """This test fails if a new setting holds a secret, and the settings show it."""
    given: dict[str, Any] = {
        "nats_url": f"nats://joe:{PASSWORD}@nats:4222",
        "nats_user": "joe",
        "nats_password": PASSWORD,
        "nats_token": TOKEN,
        "spark": SPARK,
    }
    assert SECRET not in repr(load_settings(**given))
    assert SECRET not in load_settings(**given).spark_shown()
    hidden = {
        name for name, field in Settings.model_fields.items() if not field.repr or "SecretStr" in str(field.annotation)
    }
    assert hidden == {"nats_url", "nats_password", "nats_token", "spark"}


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
@pytest.mark.parametrize("way", WAYS)
async def test_nothing_that_is_shown_has_a_secret(way: str, tmp_path: Path) -> None:
    right = {"token": TOKEN} if way.startswith("token") else {"user": "joe", "password": PASSWORD}
    async with embedded_nats(tmp_path / "nats", authorization=right) as nats:
        given = secrets_of(way, nats.url, tmp_path)
        url = given["nats_url"]
        more = {name: value for name, value in given.items() if name != "nats_url"}
        shown: dict[str, str] = {}
        async with launched(url, "one", python=sys.executable, http=":0", log_level="debug", **more) as server:
            port = (await server.wait_for("http_listening"))["port"]
            await server.wait_for("server_ready")
            await until(port, "/readyz", 200)
            for words in (
                "enqueue shop main --set a=1",
                "status --json",
                "explain shop main --json",
                "doctor",
                "gc",
                "serve --wait-for-nats 0 --spark nonsense;token=" + SECRET,
            ):
                done = await rebaser(*words.split(), **given)
                shown[words.replace(SECRET, "")] = done.stdout + done.stderr
            shown["metrics"] = (await ask(port, "/metrics")).body
            shown["probe"] = (await ask(port, "/readyz?verbose")).body
            settings = load_settings(**given)
            async with Connection.connect(url, **settings.access()) as connection:
                inbox = connection.new_inbox()
                async with connection.subscribe(inbox) as answers:
                    await connection.publish("rebaser.servers.ping", b"", {REPLY_INBOX: inbox}, reply=inbox)
                    shown["ping"] = (await anext(answers)).data.decode()
            listener = await listen("127.0.0.1:0")
            with listener:
                http = listener.getsockname()[1]
                options = ConsoleOptions(accepted_hosts("127.0.0.1", http, ()))
                async with console_server.console(lambda: client_for(settings), listener, options, "test"):
                    for path in ("/overview", "/dvu", "/change-sets/shop/main"):
                        shown[f"console {path}"] = json.dumps(await WebConsole(http).get(path))
            shown["ps"] = "\n".join(arguments())
            assert "rebaser serve" in shown["ps"]
        shown["log"] = json.dumps(server.events)
        assert "server_ready" in shown["log"]
    assert [place for place, text in shown.items() if SECRET in text] == []
