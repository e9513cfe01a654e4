"""A connection while NATS is down, slow, or gone for a while."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlparse

import anyio
import pytest
from nats.aio.client import Srv

from rebaser.embedded.nats import EmbeddedNats, embedded_nats
from rebaser_client.jetstream import Connection, Msg, NoAnswerError, NoRespondersError
from rebaser_client.nats.errors import ClientClosedError, NotConnectedError
from rebaser_client.nats.header_lines import encode_headers
from rebaser_client.nats.link import Link
from rebaser_core.errors import ConfigError, UnprocessableError
from tests.support.nats_proxy import proxied

pytestmark = pytest.mark.anyio


async def echo(connection: Connection, messages: AsyncIterator[Msg]) -> None:
    async for message in messages:
        await connection.publish(message.reply, message.data, message.headers)


async def test_nobody_at_the_address_is_a_typed_error(unused_port: int) -> None:
    with pytest.raises(NotConnectedError, match=f"127.0.0.1:{unused_port}"):
        async with Connection.connect(f"nats://127.0.0.1:{unused_port}"):
            pass


async def test_a_peer_that_never_speaks_is_given_up_in_time() -> None:
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as group:

        async def say_nothing(stream: anyio.abc.SocketStream) -> None:
            async with stream:
                await anyio.sleep_forever()

        group.start_soon(listener.serve, say_nothing)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        with pytest.raises(NotConnectedError):
            async with Connection.connect(f"nats://127.0.0.1:{port}", timeout=0.3):
                pass
        group.cancel_scope.cancel()


@pytest.mark.parametrize("url", ["", "http://host:1", "nats://", "nats://host:port", "nats://host:99999", "a b://x"])
async def test_what_is_no_server_address_is_a_setting_to_be_mended(url: str) -> None:
    with pytest.raises(ConfigError):
        async with Connection.connect(url):
            pass


async def test_a_password_in_the_address_is_not_shown(unused_port: int) -> None:
    with pytest.raises(NotConnectedError) as refused:
        async with Connection.connect(f"nats://me:secret@127.0.0.1:{unused_port}"):
            pass
    assert "secret" not in str(refused.value)
    with pytest.raises(ConfigError) as wrong:
        async with Connection.connect("http://me:secret@host"):
            pass
    assert "secret" not in str(wrong.value)


async def test_an_error_inside_comes_out_as_it_is(nats_url: str) -> None:
    with pytest.raises(ZeroDivisionError):
        async with Connection.connect(nats_url):
            raise ZeroDivisionError


async def test_a_request_is_answered(connection: Connection) -> None:
    subject = connection.new_inbox()
    async with connection.subscribe(subject) as messages, anyio.create_task_group() as group:
        group.start_soon(echo, connection, messages)
        answer = await connection.request(subject, b"hello", {"X-A": "b"})
        group.cancel_scope.cancel()
    assert (answer.data, answer.headers) == (b"hello", {"X-A": "b"})


async def test_nobody_listening_and_nobody_answering_differ(connection: Connection) -> None:
    with pytest.raises(NoRespondersError):
        await connection.request(connection.new_inbox())
    subject = connection.new_inbox()
    async with connection.subscribe(subject):
        with pytest.raises(NoAnswerError):
            await connection.request(subject, timeout=0.05)


async def test_a_message_that_only_headers_make_too_large_is_refused_and_the_connection_lives(
    connection: Connection,
) -> None:
    with pytest.raises(UnprocessableError) as refused:
        await connection.publish("x", b"x" * (connection.max_payload - 10), {"A": "b" * 100})
    assert refused.value.code == "too_large"
    with pytest.raises(UnprocessableError):
        await connection.publish("x", b"x" * (connection.max_payload + 1))
    with pytest.raises(NoRespondersError):
        await connection.request(connection.new_inbox())


@pytest.mark.parametrize("subject", ["a b", "a\r\nPUB x 0\r\n", ""])
async def test_a_subject_cannot_smuggle_commands(connection: Connection, subject: str) -> None:
    with pytest.raises(UnprocessableError):
        await connection.publish(subject, b"")
    with pytest.raises(UnprocessableError):
        await connection.request(subject)
    if subject:
        with pytest.raises(UnprocessableError):
            await connection.publish("x", b"", reply=subject)
    with pytest.raises(NoRespondersError):
        await connection.request(connection.new_inbox())


async def test_headers_that_are_encoded_already_arrive_like_others(connection: Connection) -> None:
    subject = connection.new_inbox()
    async with connection.subscribe(subject) as messages:
        connection.publish_soon(subject, b"1", encode_headers({"A": "b"}))
        connection.publish_soon(subject, b"2", {"A": "b"})
        got = [await anext(messages) for _ in range(2)]
    assert [(message.data, message.headers) for message in got] == [(b"1", {"A": "b"}), (b"2", {"A": "b"})]


async def test_a_handler_that_fails_stops_nobody(connection: Connection) -> None:
    def fail(subject: str, reply: str, data: bytes, headers: dict[str, str] | None) -> None:
        raise ZeroDivisionError

    subject = connection.new_inbox()
    subscription = await connection.listen(subject, fail)
    await connection.publish(subject)
    with pytest.raises(NoRespondersError):
        await connection.request(connection.new_inbox())
    await subscription.close()


async def test_a_slow_reader_loses_only_what_it_has_no_room_for(connection: Connection) -> None:
    subject = connection.new_inbox()
    async with connection.subscribe(subject, max_pending=2) as messages:
        for number in range(5):
            await connection.publish(subject, b"%d" % number)
        with pytest.raises(NoRespondersError):  # all messages have arrived when this is answered
            await connection.request(connection.new_inbox())
        assert [(await anext(messages)).data for _ in range(2)] == [b"0", b"1"]


async def test_after_a_restart_all_goes_on(own_nats: EmbeddedNats) -> None:
    reconnected = anyio.Event()
    async with Connection.connect(own_nats.url) as connection:
        connection.on_reconnect(reconnected.set)
        async with connection.subscribe("echo") as messages, anyio.create_task_group() as group:
            group.start_soon(echo, connection, messages)
            reply, answer = connection.open_reply()
            await own_nats.kill()
            await own_nats.start()
            await reconnected.wait()
            await connection.publish("echo", b"late", reply=reply)
            assert (await answer).data == b"late"
            connection.close_reply(reply)
            assert (await connection.request("echo", b"again")).data == b"again"
            group.cancel_scope.cancel()


async def test_if_the_only_server_in_the_settings_is_gone_one_that_it_announced_is_used(
    own_nats: EmbeddedNats, nats_url: str
) -> None:
    async with Connection.connect(own_nats.url) as connection:
        link = connection._link
        assert link is not None
        announced = Srv(urlparse(nats_url))  # in the form in which nats-py keeps announced servers
        announced.discovered = True
        link.client._server_pool.append(announced)
        reconnected = anyio.Event()
        connection.on_reconnect(reconnected.set)
        await own_nats.kill()
        with anyio.fail_after(60):
            await reconnected.wait()
            await connection.flush()


async def test_a_socket_that_breaks_while_it_is_written_to_is_noticed_at_once(
    own_nats: EmbeddedNats, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nats-py writes buffered data when it closes. If that fails, too, it ends without an error, and nobody may have to
    wait for a ping to notice."""
    reconnected = anyio.Event()
    async with Connection.connect(own_nats.url, ping_interval=3600) as connection:
        connection.on_reconnect(reconnected.set)
        with pytest.raises(NoRespondersError):
            await connection.request("nobody")  # the connection is watched by the time of the answer
        assert connection._link is not None
        client = connection._link.client
        transport = client._transport
        assert transport is not None

        def closed(_: list[bytes]) -> None:
            raise RuntimeError("the handler is closed")

        def write_more() -> None:
            client._pending.append(b"PING\r\n")
            client._pending_data_size += 6

        async def reset() -> None:
            monkeypatch.setattr(transport, "writelines", closed)
            asyncio.get_running_loop().call_soon(write_more)  # by another task, while nats-py closes
            raise ConnectionResetError("Connection lost")

        monkeypatch.setattr(transport, "drain", reset)
        await connection.publish("x", b"the last")
        with anyio.fail_after(60):
            await reconnected.wait()
            await connection.publish("x", b"the first")


async def test_while_it_is_away_publishes_fail_and_are_not_sent_later(own_nats: EmbeddedNats) -> None:
    async with Connection.connect(own_nats.url) as connection, connection.subscribe("x") as seen:
        before = anyio.current_time()
        await own_nats.kill()
        with pytest.raises((NoAnswerError, NotConnectedError)):
            await connection.request("nobody", timeout=1.0)
        with pytest.raises(NotConnectedError):
            await connection.publish("x", b"stale")
        away, rtt = connection.away_and_rtt()
        assert (0 <= away <= anyio.current_time() - before, rtt) == (True, 0.0)
        await own_nats.start()
        await connection.wait_connected()
        await connection.publish("x", b"fresh")
        assert (await anext(seen)).data == b"fresh"


async def test_a_request_waits_for_a_connection_within_its_time(own_nats: EmbeddedNats) -> None:
    answers: list[bytes] = []
    async with Connection.connect(own_nats.url) as connection, connection.subscribe("echo") as messages:

        async def ask() -> None:
            answers.append((await connection.request("echo", b"1", timeout=120)).data)

        await own_nats.kill()
        with pytest.raises((NoAnswerError, NotConnectedError)):
            await connection.request("echo", timeout=1.0)
        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await own_nats.start()
            request = await anext(messages)
            await connection.publish(request.reply, request.data)
    assert answers == [b"1"]


async def test_a_frozen_server_is_noticed_and_what_waits_for_it_is_told(own_nats: EmbeddedNats) -> None:
    async with Connection.connect(own_nats.url, ping_interval=1.0) as connection, connection.subscribe("silent"):
        os.kill(own_nats.pid, signal.SIGSTOP)
        try:
            with pytest.raises(NoAnswerError, match="lost"):
                await connection.request("silent", timeout=60)
        finally:
            os.kill(own_nats.pid, signal.SIGCONT)
        await connection.wait_connected()
        with pytest.raises(NoRespondersError):
            await connection.request("nobody", timeout=60)


async def test_many_cuts_leave_nothing_behind(own_nats: EmbeddedNats) -> None:
    """After each cut, exactly the lasting subscriptions exist again."""

    def handle(*_: object) -> None:
        raise AssertionError

    async with proxied(own_nats.port) as proxy, Connection.connect(proxy.url) as connection:
        for _ in range(20):
            async with connection.subscribe("here") as messages:
                back = anyio.Event()
                forget = connection.on_reconnect(back.set)
                await connection.listen("gone", handle, lasting=False)
                await proxy.cut()
                await back.wait()
                forget()
                await connection.publish("here", b"x")
                assert (await anext(messages)).data == b"x"
            for nobody in ("here", "gone"):
                with pytest.raises(NoRespondersError):
                    await connection.request(nobody)


async def test_credentials_open_the_door_and_wrong_ones_are_refused_at_once(tmp_path: Path) -> None:
    async with embedded_nats(tmp_path, authorization={"token": "t0ken"}) as server:
        async with Connection.connect(server.url, token="t0ken") as connection:
            assert connection.connected
        for token in (None, "wrong"):
            with pytest.raises(NotConnectedError, match=r"(?i)authorization"):
                async with Connection.connect(server.url, token=token, timeout=60):
                    pass


async def test_a_user_is_let_in_by_name_or_by_address(tmp_path: Path) -> None:
    async with embedded_nats(tmp_path, authorization={"user": "me", "password": "p"}) as server:
        async with Connection.connect(server.url, user="me", password="p") as connection:
            assert connection.connected
        async with Connection.connect(server.url.replace("//", "//me:p@")) as connection:
            assert connection.connected


async def test_a_missing_credentials_file_is_named(nats_url: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.creds"):
        async with Connection.connect(nats_url, creds=tmp_path / "absent.creds"):
            pass


async def test_a_missing_package_for_credentials_is_named(
    nats_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.creds").touch()
    monkeypatch.setitem(sys.modules, "nkeys", None)
    with pytest.raises(ConfigError, match="nkeys"):
        async with Connection.connect(nats_url, creds=tmp_path / "x.creds"):
            pass


async def test_of_several_servers_one_that_answers_is_enough(nats_url: str, unused_port: int) -> None:
    async with Connection.connect(f"127.0.0.1:{unused_port}, {nats_url}") as connection:
        assert connection.connected


async def test_an_interest_closed_while_there_is_no_connection_stays_closed(own_nats: EmbeddedNats) -> None:
    def handle(subject: str, reply: str, data: bytes, headers: dict[str, str] | None) -> None:
        raise AssertionError

    async with Connection.connect(own_nats.url) as connection:
        before = await connection.listen("x", handle)
        await own_nats.kill()
        with pytest.raises((NoAnswerError, NotConnectedError)):
            await connection.request("x", timeout=1.0)
        meanwhile = await connection.listen("x", handle)
        with pytest.raises(NotConnectedError):
            await connection.listen("x", handle, lasting=False)
        await before.close()
        await meanwhile.close()
        await own_nats.start()
        with pytest.raises(NoRespondersError):
            await connection.request("x", timeout=120)


async def test_who_waits_for_a_connection_is_told_that_it_was_closed(
    nats_server: EmbeddedNats, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    away = anyio.Event()

    async def nobody(*_: object) -> Link:
        away.set()
        raise NotConnectedError("nobody answers")

    async def wait(connection: Connection) -> None:
        with pytest.raises(ClientClosedError):
            await connection.wait_connected()
        told.append("wait_connected")

    async def request(connection: Connection) -> None:
        with pytest.raises(ClientClosedError):
            await connection.request("x", timeout=300)
        told.append("request")

    with anyio.fail_after(60):
        async with (
            anyio.create_task_group() as group,
            proxied(nats_server.port) as proxy,
            Connection.connect(proxy.url) as connection,
        ):
            monkeypatch.setattr(Link, "open", nobody)
            await proxy.cut()
            await away.wait()
            group.start_soon(wait, connection)
            group.start_soon(request, connection)
            await anyio.wait_all_tasks_blocked()
    assert sorted(told) == ["request", "wait_connected"]
