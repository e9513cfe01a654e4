"""Updates that are read in bulk, and their errors, equal those that are read one by one."""

import hashlib
import json
import random
from collections.abc import Callable
from functools import partial
from itertools import chain, pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rebaser.cli.output.console import json_text
from rebaser.cli.sending.json_block import loads_each
from rebaser.cli.sending.jsonl import JsonLinesParser
from rebaser_core.definitions import check_definition
from rebaser_core.encoding.envelope import ContentType, loads
from rebaser_core.errors import UnprocessableError
from rebaser_core.limits import DEFAULT_LIMITS, Limits
from rebaser_core.messages import decode_updates_blob, encode_updates_blob
from rebaser_core.messages.content_digest import digest_of
from rebaser_core.messages.delta import EncodedUpdates
from rebaser_core.thresholds import Thresholds, forced
from rebaser_core.updates import Derive, Set, Update, check_updates
from rebaser_core.values import canonical
from tests.fuzz.mutate import Mutator
from tests.fuzz.text_targets import make_lines
from tests.wire.strategies import json_values, update_tuples

SHORT = Limits(max_depth=3, max_value_bytes=40, max_id_length=8, max_inputs=2)


class OneByOne(JsonLinesParser):
    def _read_block(self, block: bytes) -> None:
        return None


def read(kind: type[JsonLinesParser], data: bytes, cuts: list[int], limits: Limits = DEFAULT_LIMITS) -> list[object]:
    lines = kind(limits, partial(check_definition, formulas=True))
    found: list[object] = []
    places = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    chunks = [data[start:end] for start, end in pairwise(places)]
    try:
        for line in chain.from_iterable((*map(lines.feed, chunks), lines.finish())):
            found.append((line.number, line.size, canonical(wire(line.update))))  # noqa: PERF401 - an error may follow
    except UnprocessableError as error:
        found.append((error.code, error.message))
    return found


def wire(update: Update) -> Any:  # the order of inputs counts
    fields = update.to_wire()
    return [fields, [[name, fields["inputs"][name]] for name in fields.get("inputs", ())]]


@given(update_tuples, st.booleans(), st.booleans(), st.lists(st.integers(1, 400), max_size=4))
def test_valid_lines(updates: tuple[Update, ...], ascii_only: bool, windows: bool, cuts: list[int]) -> None:
    end = b"\r\n" if windows else b"\n"
    data = b"".join(json.dumps(update.to_wire(), ensure_ascii=ascii_only).encode() + end for update in updates)
    for limits in (DEFAULT_LIMITS, SHORT):
        assert read(JsonLinesParser, data, cuts, limits) == read(OneByOne, data, [], limits)


@given(st.integers(0, 2**32))
def test_damaged_lines(seed: int) -> None:
    chance = random.Random(seed)
    data = make_lines(Mutator(chance))
    cuts = [chance.randint(1, len(data) + 1) for _ in range(3)]
    for limits in (DEFAULT_LIMITS, SHORT):
        assert read(JsonLinesParser, data, cuts, limits) == read(OneByOne, data, [], limits)


numbers = st.from_regex(r"-?(0|[1-9][0-9]{0,22})(\.[0-9]{1,30})?([eE][-+]?[0-9]{1,3})?", fullmatch=True)
texts = st.text(st.sampled_from('a"\\/u0dé8\ud83d\x00\x1f\x7f\n\u2028'), max_size=8)
keys = st.sampled_from(['"op"', '"id"', '"value"', '"\\u0069d"', '"x\\"y"', '"x\\\\"', '"{"'])
raws = st.recursive(
    numbers | texts.map(json.dumps) | texts.map(lambda text: f'"{text}"') | st.sampled_from(["true", "null", "NaN"]),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{','.join(items)}]")
        | st.lists(st.tuples(keys, inner), max_size=3).map(
            lambda items: "{" + ", ".join(f"{key}:{value}" for key, value in items) + "}"
        )
    ),
    max_leaves=6,
)


@given(st.lists(raws, max_size=4))
@example(['{"a":1,"a":1}'])
@example(['{"a":{"b":"\\"","b":"\\""}}', '"\\\\"'])
@example(["1" + "0" * 1100 + ".5", "1." + "0" * 1100, '"' + "1" * 2000 + '"'])
@example(["[" * 5000 + "]" * 5000])
@example(["1e-400", "5e-324", "-0", "-0.0", "0.1", "123456789012345678e-25", "9007199254740993.0"])
def test_json_texts(lines: list[str]) -> None:
    """Bulk decoding gives the same as `loads`; integers beyond 64 bits and deep nesting are left to `parse_update`."""
    data = [line.encode(errors="surrogatepass") for line in lines]
    found = loads_each(data)
    if found is None:
        return
    for value, text in zip(found, data, strict=True):
        try:
            assert canonical(value) == canonical(loads(ContentType.JSON, text))  # type: ignore[arg-type]
        except UnprocessableError as error:
            assert error.code == "too_deep" or "does not fit in 64 bits" in error.message  # noqa: PT017


def blob_outcome(data: bytes) -> object:
    try:
        return [canonical(wire(update)) for update in decode_updates_blob(data, SHORT)]
    except UnprocessableError as error:
        return error.code, error.message
    except Exception as error:  # noqa: BLE001 - the same one, whatever it is
        return type(error), str(error)


@given(st.lists(update_tuples, max_size=4), st.integers(0, 2**32), st.integers(1, 9))
def test_blobs(updates: list[tuple[Update, ...]], seed: int, size: int) -> None:
    """Any number of items may be encoded or decoded in one call, and `damaged` bytes give the same error."""
    every = sum(updates, ())
    blob = encode_updates_blob(every)
    damaged = Mutator(random.Random(seed)).damaged(blob)
    expected = [blob_outcome(blob), blob_outcome(damaged)]
    for most in (1, size):
        with forced(Thresholds(blob_slice_max_items=most)):
            assert encode_updates_blob(every) == blob
            assert [blob_outcome(blob), blob_outcome(damaged)] == expected
    if every:
        assert tuple(EncodedUpdates.of(every)) == check_updates(every)


@pytest.mark.parametrize("most", [1, 7, 256])
def test_the_position_of_an_invalid_update_is_its_own(most: int) -> None:
    updates = [Set(f"v{at}", at) for at in range(600)]
    updates[523] = Set("no\nline", 1)
    blob = encode_updates_blob(updates)
    with forced(Thresholds(blob_slice_max_items=most)), pytest.raises(UnprocessableError) as caught:
        decode_updates_blob(blob)
    assert caught.value.message == "update 523: id 'no\\nline' has a character that is not printable: remove it"
    assert caught.value.code == "invalid_update"


@given(update_tuples)
def test_the_digest_of_a_definition_is_that_of_its_parts(updates: tuple[Update, ...]) -> None:
    def part(update: Update) -> bytes:
        wire = update.to_wire()
        if type(update) is Derive:
            inputs: Any = [[name, source] for name, source in wire["inputs"].items()]
            return b"derive" + canonical([update.id, update.function, inputs, wire["params"]])
        id_ = update.id.encode()
        value = canonical(wire["value"]) if "value" in wire else b""
        return b"%b%d:%b%b" % (wire["op"].encode(), len(id_), id_, value)

    whole = hashlib.blake2b(b"".join(map(part, updates)), digest_size=8).digest()
    assert digest_of(updates, None, None) == whole


@given(json_values)
def test_values_of_get_are_the_text_of_the_encoder(value: object) -> None:
    encode: Callable[..., str] = partial(json.dumps, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    assert json_text(value) == encode(value)
