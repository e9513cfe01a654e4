"""JSON Lines of updates: every line is in a batch, or in an error that gives its number."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebaser.cli.sending.batches import UpdateBatch
from rebaser.cli.sending.jsonl import CsvParser, JsonLinesParser, UpdateLine
from rebaser_core.errors import UnprocessableError
from rebaser_core.limits import DEFAULT_LIMITS, Limits
from rebaser_core.updates import Remove, Set, Unset, Update


def read(data: bytes, chunk: int = 2**16, limits: Limits = DEFAULT_LIMITS) -> list[UpdateLine]:
    lines = JsonLinesParser(limits)
    out: list[UpdateLine] = []
    for start in range(0, len(data), chunk):
        out.extend(lines.feed(data[start : start + chunk]))
    out.extend(lines.finish())
    return out


def encoded(*updates: Update) -> bytes:
    return b"".join(json.dumps(update.to_wire(), ensure_ascii=False).encode() + b"\n" for update in updates)


@given(st.lists(st.text("ab\u00e9\u4e2d", min_size=1, max_size=5), max_size=8), st.integers(1, 40), st.booleans())
def test_lines_are_the_same_however_the_bytes_are_cut(ids: list[str], chunk: int, newline: bool) -> None:
    updates = [Set(id_, number) for number, id_ in enumerate(ids)]
    data = encoded(*updates)
    found = read(data if newline else data.rstrip(b"\n"), chunk)
    assert [line.update for line in found] == updates
    assert [line.number for line in found] == list(range(1, len(ids) + 1))


@given(st.lists(st.integers(1, 60), max_size=12), st.integers(1, 80))
def test_a_line_is_as_long_as_it_is_whatever_stood_before_it(lengths: list[int], chunk: int) -> None:
    lines = [b" " * (length - 1) + b"\n" for length in lengths]
    limits = replace(DEFAULT_LIMITS, max_request_bytes=40)
    too_long = next((number for number, line in enumerate(lines, 1) if len(line) - 1 > 40), None)
    if too_long is None:
        assert read(b"".join(lines), chunk, limits) == []
    else:
        with pytest.raises(UnprocessableError, match=f"^line {too_long} is longer than 40 bytes"):
            read(b"".join(lines), chunk, limits)


def test_sizes_add_up_to_the_input() -> None:
    data = encoded(Set("a", 1), Remove("b"))
    assert sum(line.size for line in read(data)) == len(data)


def test_blank_lines_windows_line_ends_and_a_byte_order_mark_are_no_trouble() -> None:
    data = b"\xef\xbb\xbf" + encoded(Set("a", 1)).replace(b"\n", b"\r\n") + b"\r\n  \n" + encoded(Remove("b"))
    assert [(line.number, line.update) for line in read(data)] == [(1, Set("a", 1)), (4, Remove("b"))]


@pytest.mark.parametrize(
    "bad",
    [
        b"{",
        b"[]",
        b'{"op": "set"}',
        b'{"op": "set", "id": "a", "value": NaN}',
        b'{"op": "set", "id": "a", "value": 1, "value": 2}',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"op": "fly", "id": "a"}',
    ],
)
def test_a_bad_line_is_named_and_ends_the_reading(bad: bytes) -> None:
    lines = JsonLinesParser().feed(encoded(Set("a", 1)) + b"\n" + bad + b"\n" + encoded(Set("b", 2)))
    assert next(lines).update == Set("a", 1)
    with pytest.raises(UnprocessableError, match=r"^line 3: "):
        next(lines)


def test_a_line_without_an_end_is_bounded() -> None:
    with pytest.raises(UnprocessableError, match=r"^line 1 is longer than 1000 bytes"):
        read(b"x" * 2000, 100, replace(DEFAULT_LIMITS, max_request_bytes=1000))


def test_batches_are_bounded_in_count_and_bytes_and_a_large_line_goes_alone() -> None:
    batch = UpdateBatch(max_count=2, max_bytes=100)
    small, large = UpdateLine(7, 30, Set("a", 1)), UpdateLine(8, 500, Set("b", 2))
    assert batch.has_room(large)
    batch.add(small)
    assert batch.has_room(small)
    assert not batch.has_room(large)
    batch.add(small._replace(number=8))
    assert not batch.has_room(small)
    assert (batch.first_line, batch.last_line, batch.size) == (7, 8, 60)


def csv_updates(text: str) -> list[object]:
    lines = CsvParser()
    return [line.update for line in (*lines.feed(text.encode()), *lines.finish())]


def test_values_come_from_csv() -> None:
    text = '\ufeffid,value\r\na,1\r\nb,2.50\r\nzip,007\r\n"c,d","say ""x"""\r\n\r\ne,true\r\nf,\r\n"g","[1, 2]"'
    assert csv_updates(text) == [
        Set("a", 1),
        Set("b", 2.5),
        Set("zip", "007"),
        Set("c,d", 'say "x"'),
        Set("e", True),
        Unset("f"),
        Set("g", [1, 2]),
    ]
    assert csv_updates("value,id\n1,a\n") == [Set("a", 1)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,1\n", "line 1: the first line must contain the column names: id,value"),
        ("id,value\na\n", "line 2: a line must have 2 cells, not 1"),
        ('id,value\na,"1\n', "line 2: not valid CSV"),
        ("id,value\n,1\n", "line 2: id is missing"),
    ],
)
def test_a_line_of_csv_that_is_wrong_is_named(text: str, message: str) -> None:
    with pytest.raises(UnprocessableError) as caught:
        csv_updates(text)
    assert caught.value.message.startswith(message)
