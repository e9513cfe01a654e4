"""The parser of the NATS protocol: it reads every message once, however the stream is cut and whatever a message
contains."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client
from nats.errors import ProtocolError

from rebaser_client.jetstream.messages import Message
from rebaser_client.nats import messages
from rebaser_client.nats.messages import DESCRIPTION, STATUS, Msg, parse_headers
from rebaser_client.nats.parser import MAX_LINE, ProtocolParser, RawHandler, SizedHandler

TOKEN = st.binary(min_size=1, max_size=20).filter(lambda raw: not set(raw) & set(b" \t\r\n"))
FRAMES = st.tuples(TOKEN, st.none() | TOKEN, st.none() | st.binary(max_size=40), st.binary(max_size=60))
Frame = tuple[bytes, bytes | None, bytes | None, bytes]


def wire(frame: Frame, sid: int = 7) -> bytes:
    subject, reply, headers, payload = frame
    to = b"" if reply is None else reply + b" "
    if headers is None:
        return b"MSG %b %d %b%d\r\n%b\r\n" % (subject, sid, to, len(payload), payload)
    size = len(headers) + len(payload)
    return b"HMSG %b %d %b%d %d\r\n%b%b\r\n" % (subject, sid, to, len(headers), size, headers, payload)


def read(chunks: list[bytes], client: object = None) -> list[Msg]:
    got: list[Msg] = []
    reader = ProtocolParser(client)  # type: ignore[arg-type]
    reader.handle(7, lambda *message: got.append(Msg(*message)))

    async def run() -> None:
        for chunk in chunks:
            await reader.parse(chunk)

    asyncio.run(run())
    return got


@given(st.lists(FRAMES, max_size=5), st.data())
def test_messages_arrive_whole_however_they_are_cut(frames: list[Frame], data: st.DataObject) -> None:
    stream = b"".join(wire(frame) for frame in frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    got = read(pieces)
    assert [message.data for message in got] == [frame[3] for frame in frames]
    assert [message.subject for message in got] == [frame[0].decode("utf-8", "replace") for frame in frames]
    assert [message.reply for message in got] == [(frame[1] or b"").decode("utf-8", "replace") for frame in frames]


def test_a_large_message_in_small_pieces_is_put_together_once() -> None:
    payload = bytes(range(256)) * 8192
    stream = wire((b"s", b"r", None, payload)) + wire((b"t", None, None, b"x"))
    got = read([stream[at : at + 1000] for at in range(0, len(stream), 1000)])
    assert [message.data for message in got] == [payload, b"x"]


def test_a_message_for_nobody_is_skipped_and_a_handler_that_fails_stops_nobody() -> None:
    got: list[bytes] = []
    reader = ProtocolParser(None)  # type: ignore[arg-type]

    def handle(subject: str, reply: str, data: bytes, headers: dict[str, str] | None) -> None:
        got.append(data)
        raise ZeroDivisionError

    reader.handle(7, handle)
    frames = [wire((b"s", None, None, b"1")), wire((b"s", None, None, b"no"), 8), wire((b"s", None, None, b"2"))]
    asyncio.run(reader.parse(b"".join(frames)))
    assert got == [b"1", b"2"]


@given(FRAMES)
def test_each_kind_of_handler_gets_the_same_message(frame: Frame) -> None:
    got: list[tuple[object, ...]] = []
    for handler in (
        lambda *message: got.append(message),
        SizedHandler(lambda *message: got.append(message)),
        RawHandler(lambda *message: got.append(message)),
    ):
        reader = ProtocolParser(None)  # type: ignore[arg-type]
        reader.handle(7, handler)
        asyncio.run(reader.parse(wire(frame)))
    plain, sized, raw = got
    subject, reply, headers, payload = frame
    assert sized == (*plain, len(subject) + len(reply or b"") + len(headers or b"") + len(payload))
    assert raw == (*plain[:3], headers or b"")
    assert plain[3] == (parse_headers(headers) if headers else None)


class ControlHandler:
    """Stands in for nats-py's client."""

    def __init__(self) -> None:
        self.called: list[object] = []

    async def on_ping(self) -> None:
        self.called.append("ping")

    async def on_pong(self) -> None:
        self.called.append("pong")

    async def on_error(self, text: str) -> None:
        self.called.append(text)

    async def on_info(self, info: object) -> None:
        self.called.append(info)


def test_control_lines_reach_the_client() -> None:
    control = ControlHandler()
    lines = b"PING\r\nPONG\r\n+OK\r\n-ERR 'Stale Connection'\r\nINFO %b\r\n" % json.dumps({"a": 1}).encode()
    assert read([lines[:9], lines[9:]], control) == []
    assert control.called == ["ping", "pong", "'Stale Connection'", {"a": 1}]


@pytest.mark.parametrize(
    "line",
    [
        b"HELLO\r\n",
        b"MSG\r\n",
        b"MSG a b c\r\n",
        b"MSG a 1 -20\r\n",
        b"MSG a 1 -15\r\n",  # a negative size, which would lead back to the start of the line
        b"HMSG a 7 9 2\r\nab\r\n",
        b"HMSG a 7 -1 2\r\nab\r\n",
        b"INFO {\r\n",
        b"x" * (MAX_LINE + 1),
    ],
)
def test_what_no_server_sends_ends_the_connection(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        read([line], ControlHandler())


@given(st.lists(st.tuples(st.text("abcXYZ-_09", min_size=1), st.text(max_size=200)), max_size=6))
def test_headers_are_those_that_nats_py_reads(pairs: list[tuple[str, str]]) -> None:
    lines = "".join(f"{name}: {value.replace(chr(13), '').replace(chr(10), '')}\r\n" for name, value in pairs)
    block = f"{lines}\r\n".encode()
    assert parse_headers(b"NATS/1.0\r\n" + block) == Client._parse_header_lines(block)


@given(st.binary(max_size=300))
def test_any_bytes_are_some_headers(raw: bytes) -> None:
    assert all(name for name in parse_headers(raw))


def test_an_inline_status_is_told_from_a_header_of_that_name() -> None:
    status = parse_headers(b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 3\r\n\r\n")
    assert status == {STATUS: "408", DESCRIPTION: "Request Timeout", "Nats-Pending-Messages": "3"}
    assert parse_headers(b"NATS/1.0 503\r\n\r\n") == {STATUS: "503", DESCRIPTION: ""}
    made_up = parse_headers(b"NATS/1.0\r\nStatus: 409\r\n:status: 409\r\n\r\n")
    assert made_up == {"Status": "409"}


@pytest.mark.parametrize(
    "reply",
    ["$JS.ACK.s.c.2.30.4.1700000000000000000.6", "$JS.ACK.hub.HASH.s.c.2.30.4.1700000000000000000.6.token"],
)
def test_a_delivery_has_its_numbers_in_either_form_of_the_ack_subject(reply: str) -> None:
    message = Message("s", reply, b"", None)
    assert (message.stream_sequence, message.consumer_sequence, message.delivered, message.pending) == (30, 4, 2, 6)
    assert message.timestamp_ns == 1_700_000_000_000_000_000
    assert message.headers == {}


@pytest.mark.parametrize(
    "reply", ["", "_INBOX.a", "$JS.ACK.s.c.1.x.4.5.6", "$JS.API.s.c.1.2.3.4.5", "a.b.c.d.e.f.g.h.i"]
)
def test_what_is_no_ack_subject_is_no_delivery(reply: str) -> None:
    with pytest.raises(ValueError, match=r"ack subject|invalid literal"):
        Message("s", reply, b"", None)


@pytest.mark.parametrize("ends", ["", ".token"])
@pytest.mark.parametrize("middle", ["", "hub.hash."])
def test_a_delivery_says_whose_it_is_with_and_without_a_domain(middle: str, ends: str) -> None:
    ends = ends if middle else ""
    message = Message("s", f"$JS.ACK.{middle}STREAM.CONSUMER.2.7.5.1700.3{ends}", b"", None)
    assert (message.stream, message.consumer) == ("STREAM", "CONSUMER")
    numbers = (message.delivered, message.stream_sequence, message.consumer_sequence)
    assert (*numbers, message.timestamp_ns, message.pending) == (2, 7, 5, 1700, 3)


def test_headers_are_read_the_same_while_lines_are_kept_and_after_there_was_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(messages, "KEPT_MAX", 3)
    kept = dict[bytes, tuple[str, str]](), dict[bytes, str]()
    monkeypatch.setattr(messages, "_kept_lines", kept[0])
    monkeypatch.setattr(messages, "_kept_names", kept[1])
    long = "x" * messages.KEPT_LINE_MAX
    for number in range(10):
        for _ in range(2):
            raw = f"NATS/1.0\r\nA: {number}\r\n B{number} :é \r\nC: {long}{number}\r\n{long}: 1\r\nD E: 1\r\nF\r\n\r\n"
            found = {"A": str(number), f"B{number}": "é", "C": f"{long}{number}", long: "1"}
            assert parse_headers(raw.encode()) == found
            assert all(0 < len(one) <= 3 for one in kept)
