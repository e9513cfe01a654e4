"""The header lines of messages to send: each is one valid line, whether or not it or its name was kept before."""

import pytest

from rebaser_client.nats import header_lines
from rebaser_client.nats.header_lines import Headers, encode_headers, with_number
from rebaser_client.nats.messages import parse_headers
from rebaser_core.errors import UnprocessableError


@pytest.mark.parametrize("room", [0, 1_000_000])
def test_lines_are_the_same_with_and_without_room_to_keep_them(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(header_lines, "MAX_LINES", room)
    monkeypatch.setattr(header_lines, "MAX_NAMES", room)
    headers = {f"X-{room}-A": " a\r\nX-B: b ", f" X-{room}-C ": "é" * 100, f"X-{room}-D": ""}
    for _ in range(2):
        block = encode_headers(headers)
        text = f"NATS/1.0\r\nX-{room}-A: a  X-B: b\r\nX-{room}-C: {'é' * 100}\r\nX-{room}-D: \r\n\r\n"
        assert block.decode() == text


@pytest.mark.parametrize("name", ["", " ", "a b", "a:", "é", "a\r\nb"])
def test_an_invalid_name_is_refused_each_time(name: str) -> None:
    for _ in range(2):
        with pytest.raises(UnprocessableError, match="the name of a header"):
            encode_headers({name: "1"})


@pytest.mark.parametrize("headers", [None, {"A": "b"}, encode_headers({"A": "b"})])
def test_a_number_is_added_to_headers_of_any_form(headers: Headers | None) -> None:
    block = with_number(headers, "N", 12)
    assert block.startswith(b"NATS/1.0\r\nN: 12\r\n")
    assert parse_headers(block) == {"N": "12"} | ({} if headers is None else {"A": "b"})
