"""What is fuzzed: for each target valid examples, how they are damaged, and what must hold for any bytes.

A check takes bytes and nothing else, so that a failing input can be kept as it is. It may raise what the code it tests
says it raises; it returns for everything else that is right.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import cbor2
import numpy as np
import pyarrow as pa
from nats.errors import BadHeaderError, ProtocolError

from rebaser.change_set.replies import inbox_allowed, response
from rebaser.cli.jsonl import UpdateLines
from rebaser.dvu import cel
from rebaser.dvu.functions.base import FunctionError
from rebaser.dvu.functions.registry import builtins
from rebaser.dvu.wire import pack, unpack
from rebaser_client.jetstream.link import _header_line
from rebaser_client.jetstream.messages import Message, parse_headers
from rebaser_client.jetstream.reader import Reader
from rebaser_core.address import address_of, check_address
from rebaser_core.checkpoint import open_checkpoint, schema
from rebaser_core.commit import Applied, Commit, Kind, Outcome
from rebaser_core.dead_letter import dead_headers
from rebaser_core.decide import Incoming, decide
from rebaser_core.envelope import CBOR, JSON, dumps, loads
from rebaser_core.errors import RebaserError, UnprocessableError, UnsupportedVersion
from rebaser_core.ids import ChangeSetKey, check_token, ulid_time_ms
from rebaser_core.messages import (
    EnqueueUpdatesRequest,
    EnqueueUpdatesResponse,
    decode,
    decode_commit,
    decode_delta,
    decode_updates_blob,
    encode,
    encode_commit,
    read_sweep_headers,
)
from rebaser_core.state import ChangeSetState
from rebaser_core.subjects import Subjects
from rebaser_core.values import same
from tests.fuzz.mutate import Mutator, as_cbor
from tests.wire.checkpoints import restored
from tests.wire.examples import examples

KEY = ChangeSetKey("ws", "cs")


@dataclass(frozen=True)
class Target:
    """`make` gives an input; `check` raises for one that shows a defect."""

    make: Callable[[Mutator], bytes]
    check: Callable[[bytes], object]


def refused(call: Callable[[], object]) -> object:
    """What `call` returns; the error, if it is one of ours and says what it should."""
    try:
        return call()
    except RebaserError as error:
        return told(error)


def told(error: RebaserError) -> RebaserError:
    assert error.code
    assert len(error.message) < 2000
    error.message.encode()
    return error


# -- messages: a header block, then the payload ------------------------------------------------------------------------


def framed(headers: Mapping[str, str], payload: bytes) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"NATS/1.0\r\n{lines}\r\n".encode(errors="replace") + payload


def unframed(data: bytes) -> tuple[dict[str, str] | None, bytes]:
    block, end, payload = data.partition(b"\r\n\r\n")
    return (parse_headers(block + end), payload) if end else (None, data)


def messages(kind: str) -> list[tuple[dict[str, str], bytes]]:
    """The golden files of messages of type `kind`: headers and payload."""
    found = [one for one in examples() if one.name.startswith(f"{kind}.") and one.headers_path.exists()]
    return [(json.loads(one.headers_path.read_bytes()), one.path.read_bytes()) for one in found]


def make_message(kind: str) -> Callable[[Mutator], bytes]:
    valid = messages(kind)
    payloads = [payload for _, payload in valid]

    def make(mutator: Mutator) -> bytes:
        headers, payload = mutator.chance.choice(valid)
        as_json = headers["X-CONTENT-TYPE"] == "application/json"
        if mutator.often(0.2):
            name = mutator.chance.choice(list(headers))
            headers = headers | {name: mutator.text(headers[name]).replace("\r\n\r\n", "")}
        if mutator.often(0.6):
            payload = damaged_tree(mutator, payload, as_json=as_json)
        if mutator.often(0.4):
            payload = mutator.damaged(payload, payloads)
        return framed(headers, payload) if mutator.often(0.97) else mutator.damaged(framed(headers, payload), payloads)

    return make


def damaged_tree(mutator: Mutator, payload: bytes, *, as_json: bool) -> bytes:
    value = mutator.tree(json.loads(payload) if as_json else cbor2.loads(payload))
    if not as_json:
        return as_cbor(value)
    return json.dumps(value, default=str, skipkeys=True, ensure_ascii=mutator.often(0.5)).encode(errors="surrogatepass")


def check_request(data: bytes) -> None:
    """The whole way of a request through an owner, whatever it is: it is decided, logged, answered, or set aside."""
    headers, payload = unframed(data)
    state = ChangeSetState()
    request_id, updates, error = "@1", (), None
    try:
        request = decode(headers, payload, expect=EnqueueUpdatesRequest)
        request_id, updates = request.id, request.updates or ()
    except UnprocessableError as refusal:
        error = refusal
    except UnsupportedVersion:
        return
    decided = decide(state, Applied("stream", 0), [Incoming(1, request_id, updates, error=error)])
    commit = Commit(
        "id",
        0,
        Kind.REBASE,
        1,
        "owner",
        decided.applied,
        0,
        requests=tuple(decided.decisions),
        delta=tuple(decided.delta),
    )
    assert same_commit(decode_commit(*encode_commit(commit)), commit)
    state.fold(1, commit)
    again = restored(state)
    assert again.cells.keys() == state.cells.keys()
    for decision, _ in decided.answers:
        answer = response(KEY, decision, 1)
        assert decode(*encode(answer), expect=EnqueueUpdatesResponse) == answer
        if decision.outcome is Outcome.DEAD:
            for pair in dead_headers(
                headers, decision, key=KEY, subject="rebaser.requests.ws.cs", server="s", at_ms=1
            ).items():
                _header_line(pair)


def same_commit(one: Commit, other: Commit) -> bool:
    return repr(one.requests) == repr(other.requests) and repr(one.delta) == repr(other.delta)


def check_reply(data: bytes) -> None:
    headers, payload = unframed(data)
    found = refused(lambda: decode(headers, payload, expect=EnqueueUpdatesResponse))
    if isinstance(found, EnqueueUpdatesResponse):
        assert decode(*encode(found)) == found


def check_commit(data: bytes) -> None:
    headers, payload = unframed(data)
    refused(lambda: read_sweep_headers(headers))
    commit = refused(lambda: decode_commit(headers, payload))
    if isinstance(commit, Commit):
        state = ChangeSetState()
        state.last = commit.previous
        refused(lambda: state.fold(commit.previous + 1, commit))
        state.values()


# -- payloads ----------------------------------------------------------------------------------------------------------


def sequence(data: bytes) -> list[Any]:
    """The items of a CBOR sequence: a checkpoint has several."""
    source, items = BytesIO(data), []
    while source.tell() < len(data):
        items.append(cbor2.load(source))
    return items


def make_blob(*kinds: str) -> Callable[[Mutator], bytes]:
    valid = [one.path.read_bytes() for one in examples() if one.name.startswith(kinds) and one.name.endswith(".cbor")]
    trees = [sequence(data) for data in valid]

    def make(mutator: Mutator) -> bytes:
        data = mutator.chance.choice(valid)
        if mutator.often(0.6):
            made = mutator.tree(mutator.chance.choice(trees))
            data = b"".join([as_cbor(item) for item in (made if isinstance(made, list) else [made])])
        return mutator.damaged(data, valid) if mutator.often(0.5) else data

    return make


def make_value(mutator: Mutator) -> bytes:
    value = mutator.tree(INPUTS)
    data = as_cbor(value) if mutator.often(0.5) else json.dumps(value, default=str, skipkeys=True).encode()
    return mutator.damaged(data) if mutator.often(0.7) else data


PARTS = {
    address_of(data): data for one in examples() if one.name.endswith(".arrow") and (data := one.path.read_bytes())
}


def make_part(mutator: Mutator) -> bytes:
    """A part of a checkpoint with other rows, other metadata, other bytes."""
    data = mutator.chance.choice(list(PARTS.values()))
    if mutator.often(0.6):
        with suppress(pa.ArrowException, ValueError, TypeError, OverflowError):  # what cannot even be written
            data = rewritten(mutator, pa.ipc.open_file(data))
    return mutator.damaged(data, list(PARTS.values())) if mutator.often(0.5) else data


def rewritten(mutator: Mutator, part: pa.ipc.RecordBatchFileReader) -> bytes:
    sink, about = pa.BufferOutputStream(), part.schema.metadata
    if mutator.often(0.2):
        about = noted(mutator, about)
    with pa.ipc.new_file(sink, schema.SCHEMA.with_metadata(about)) as writer:
        for number in range(part.num_record_batches):
            batch, metadata = part.get_batch_with_custom_metadata(number)
            if batch.num_rows and mutator.often(0.6):
                rows = mutator.tree(batch.to_pylist())
                batch = pa.RecordBatch.from_pylist(rows, schema=schema.SCHEMA)
                batch = batch.set_column(1, schema.SCHEMA.field(1), of_codes(batch.column(1)))
            if metadata and mutator.often(0.4):
                metadata = noted(mutator, metadata)
            writer.write_batch(batch, custom_metadata=dict(metadata) if metadata else None)
    return sink.getvalue().to_pybytes()


def of_codes(states: pa.DictionaryArray) -> pa.DictionaryArray:
    """With the dictionary that all parts have, unless other words are in there."""
    words, known = states.to_pylist(), schema.STATES.to_pylist()
    if not {*words} <= {None, *known}:
        return states
    codes = [None if word is None else known.index(word) for word in words]
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int8()), schema.STATES)


def noted(mutator: Mutator, metadata: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    return {
        key: json.dumps(mutator.tree(json.loads(text)), skipkeys=True).encode(errors="surrogatepass")
        for key, text in dict(metadata).items()
    }


def read_part(data: bytes) -> ChangeSetState:
    """The state in the newest part `data`; those before are as they were stored, if there are any."""
    reader = open_checkpoint(data)
    for part in reader.before:
        if part.address not in PARTS:
            raise UnprocessableError("there is no such part")
        reader.add(PARTS[part.address])
    reader.add(data)
    return reader.finish()[0]


def check_checkpoint(data: bytes) -> None:
    state = refused(lambda: read_part(data))
    if isinstance(state, ChangeSetState):
        shown = state.values()
        assert restored(state).values().keys() == shown.keys()


def check_blob(data: bytes) -> None:
    refused(lambda: decode_updates_blob(data))
    for kind in (Kind.REBASE, Kind.DVU):
        refused(lambda kind=kind: decode_delta(kind, data))  # type: ignore[misc]


def check_value(data: bytes) -> None:
    """JSON and CBOR alike: a value that comes out the same again, or a refusal."""
    for content_type in (JSON, CBOR):
        value = refused(lambda content_type=content_type: loads(content_type, data))  # type: ignore[misc]
        if not isinstance(value, RebaserError):
            for way in (JSON, CBOR):
                assert same(loads(way, dumps(way, value)), value)  # type: ignore[arg-type]


COLUMNS = pack(
    {"number": 1, "nodes": [3, 0, 3], "faults": [["failed", "why"], 5]},
    {"nodes": np.arange(3, dtype=np.int32), "value_bits": np.ones(2, np.int64), "value_others": as_cbor(["a", [1.5]])},
)


def make_columns(mutator: Mutator) -> bytes:
    """What travels between a server and Spark's workers, with another head or other bytes."""
    data = COLUMNS
    if mutator.often(0.6):
        head = as_cbor(mutator.tree(cbor2.loads(COLUMNS[8:])))
        data = b"RBC1" + len(head).to_bytes(4, "little") + head + COLUMNS[-40:]
    return mutator.damaged(data, (COLUMNS,)) if mutator.often(0.5) else data


def check_columns(data: bytes) -> None:
    found = refused(lambda: unpack(data, "results"))
    if isinstance(found, tuple):
        meta, columns = found
        assert sum(len(column) if isinstance(column, bytes) else column.nbytes for column in columns.values()) <= len(
            data
        )
        again = unpack(pack(meta, columns), "results")
        assert again[1].keys() == columns.keys()


# -- text --------------------------------------------------------------------------------------------------------------

SUBJECTS = (
    "rebaser.requests.ws.cs", "rebaser.tasks.ws.cs.process", "rebaser.commits.w-s.c_s", "rebaser.dlq.ws.cs",
    "_INBOX.a.b",
    "01J9Z6Q0W3X5Y7Z9A1B3C5D7E9", "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
)  # fmt: skip


def make_subject(mutator: Mutator) -> bytes:
    return mutator.text(mutator.chance.choice(SUBJECTS)).encode(errors="surrogatepass")


def check_subject(data: bytes) -> None:
    text = data.decode(errors="surrogateescape")
    subjects = Subjects()
    found = refused(lambda: subjects.parse(text))
    if isinstance(found, tuple):
        kind, key = found
        build = {
            "requests": subjects.requests,
            "tasks": subjects.task,
            "commits": subjects.commits,
            "dlq": subjects.dlq,
        }
        assert build[kind](key) == text
    if inbox_allowed(text, "_INBOX"):
        assert text.isascii()
        assert text.startswith("_INBOX.")
        assert not {"*", ">", ""} & set(text.split("."))
    for call in (ulid_time_ms, check_address, lambda text: check_token(text, "token")):
        refused(lambda call=call: call(text))  # type: ignore[misc]


LINES = (
    b'{"op": "set", "id": "cart/1/price", "value": 9.5}\n'
    b'{"op": "derive", "id": "n", "function": "cel", "inputs": {"p": "a", "q": ["b", {"match": "c/*"}]}, '
    b'"params": {"expr": "p / 1.2"}}\n'
    b'{"op": "unset", "id": "cart/1/price"}\r\n\n'
    b'{"op": "remove", "id": "stra\xc3\x9fe"}'
)


def make_lines(mutator: Mutator) -> bytes:
    if mutator.often(0.5):
        lines = [json.loads(line) for line in LINES.splitlines() if line]
        made = mutator.tree(lines)
        text = "\n".join(
            [json.dumps(line, default=str, skipkeys=True) for line in (made if isinstance(made, list) else [made])]
        )
        return text.encode() if mutator.often(0.5) else mutator.damaged(text.encode())
    return mutator.damaged(LINES, (LINES,))


def check_lines(data: bytes) -> None:
    """However the file is cut into chunks, the same updates or the same error comes out."""
    found = []
    for size in (len(data) or 1, max(7, len(data) // 200)):
        lines = UpdateLines()
        got: list[Any] = []
        try:
            for at in range(0, len(data), size):
                for line in lines.feed(data[at : at + size]):
                    got.append((line.number, repr(line.update)))  # noqa: PERF401 - what came before an error counts
            for line in lines.finish():
                got.append((line.number, repr(line.update)))  # noqa: PERF401 - as above
        except RebaserError as error:
            got.append(told(error).message)
        found.append(got)
    assert all(one == found[0] for one in found)
    assert all(isinstance(one, tuple) or one.startswith("line ") for one in found[0])


FORMULAS = (
    "price / (1 + vat)", "a * b - 3.5 % 2", "items.map(x, x * 2).filter(x, x > 1)", "name.startsWith('a') ? 1 : 2",
    "{'a': items[0], 'b': [1, 2.5, null]}", "math.greatest(a, b) + math.sqrt(price)", "size(items) > 0 && has(m.k)",
    "m['k'] == 'v' || !(a in items)", "'%' + string(a) + \"\\u00e9\"", "items.exists(x, x == b'a') ",
    "int(price) + 9223372036854775807",
    "items.all(x, items.all(y, items.all(z, x + y + z > 0)))", "timestamp('2020-01-01T00:00:00Z')", "type(a) == int",
    "name.matches('^(a+)+$')", "dyn(a) - -9223372036854775808", "1u + 2u", "items.map(x, name + name)",
)  # fmt: skip
WORDS = (
    "(", ")", "[", "]", "{", "}", ".", ",", "?", ":", "+", "-", "*", "/", "%", "&&", "||", "!", "==", "in", "true",
    "null", "a", "b",
    "name", "items", "m", ".map(x, ", "math.abs(", "9223372036854775808", "1e309", "0x", "'", '"""', "r'", "b'", "\\",
    "//", "\n", "@result",
    "#/#", "google.protobuf.Struct{}", "size(", "string(", "bytes(", "duration('1s')", ".format([1])", "é", "\x00",
    "\ud800",
)  # fmt: skip
INPUTS: dict[str, Any] = {
    "price": 9.5, "vat": 0, "a": 3, "b": 3.5, "name": "aaaa\U0001f600", "items": [1, 2.5, None, "x", [1]],
    "m": {"k": "v", "": {}},
}  # fmt: skip


def make_formula(mutator: Mutator) -> bytes:
    text = mutator.chance.choice(FORMULAS)
    if mutator.often(0.3):
        text = f"({text}) {mutator.chance.choice(WORDS)} ({mutator.chance.choice(FORMULAS)})"
    return mutator.text(text, WORDS).encode(errors="surrogatepass")


def check_formula(data: bytes) -> None:
    text = data.decode(errors="surrogateescape")
    refused(lambda: cel.names_in(text))
    try:
        value = cel.evaluate(INPUTS, text)
    except cel.FormulaError as error:
        value, code = str(error).encode().decode(), error.code
    else:
        code = "ok"
    assert code
    repr(value)


def make_call(mutator: Mutator) -> bytes:
    """A built-in function and what it is given, as JSON."""
    name = mutator.chance.choice(sorted(builtins()))
    params = {"format": "{a:>10} {b!r:.2f}", "separator": ", ", "digits": 2, "default": 0, "key": "k", "expr": "a + b"}
    return as_cbor([name, mutator.tree(INPUTS), mutator.tree(params)])


def check_call(data: bytes) -> None:
    """Only values that a request may bring are given to functions, so only these are tried."""
    call = refused(lambda: loads(CBOR, data))
    match call:
        case [str(name), dict(inputs), dict(params)] if name in builtins():
            function = builtins()[name]
            given = inputs if function.takes == "names" else list(inputs.values())
            try:
                function.call(given, params)
            except (FunctionError, cel.FormulaError):
                pass
            except (ArithmeticError, ValueError, TypeError, LookupError, AttributeError):
                pass  # a fault of the value, as what any plug-in raises


# -- the byte stream of NATS -------------------------------------------------------------------------------------------

STREAM = (
    b"INFO {\"server_id\":\"x\",\"max_payload\":1048576}\r\nPING\r\nPONG\r\n+OK\r\n"
    b"MSG a.b 7 5\r\nhello\r\nMSG a.b 7 reply.to 0\r\n\r\nHMSG a.b 7 $JS.ACK.s.c.1.2.3.4.5 12 17\r\n"
    b"NATS/1.0\r\n\r\nhello\r\n"
    b"HMSG a 7 30 30\r\nNATS/1.0 503 No Responders\r\n\r\n\r\n-ERR 'Slow Consumer'\r\n"
)  # fmt: skip


class Control:
    """Stands for nats-py's client, whose handlers the reader calls."""

    async def _process_ping(self) -> None: ...

    async def _process_pong(self) -> None: ...

    async def _process_err(self, text: str) -> None:
        text.encode()

    async def _process_info(self, info: object) -> None: ...


def make_stream(mutator: Mutator) -> bytes:
    return mutator.damaged(STREAM, (STREAM,))


def check_stream(data: bytes) -> None:
    """However it is cut into pieces, the same messages come out."""
    found = []
    for size in (len(data) or 1, max(11, len(data) // 200)):
        got: list[object] = []

        def handle(
            subject: str, reply: str, body: bytes, headers: dict[str, str] | None, got: list[object] = got
        ) -> None:
            got.append((subject, reply, body, headers))
            with suppress(ValueError):
                Message(subject, reply, body, headers)
            for pair in (headers or {}).items():
                with suppress(BadHeaderError):
                    _header_line(pair)

        reader = Reader(Control())  # type: ignore[arg-type]
        reader.handlers[7] = handle
        try:
            for at in range(0, len(data), size):
                _run(reader.parse(data[at : at + size]))
        except ProtocolError:
            pass
        found.append(got)
    assert all(one == found[0] for one in found)


def _run(work: Any) -> None:
    """Run a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("the reader waits")


TARGETS = {
    "request": Target(make_message("EnqueueUpdatesRequest"), check_request),
    "reply": Target(make_message("EnqueueUpdatesResponse"), check_reply),
    "commit": Target(make_message("Commit"), check_commit),
    "checkpoint": Target(make_part, check_checkpoint),
    "checkpoint_v1": Target(make_blob("Checkpoint"), check_checkpoint),
    "blob": Target(make_blob("UpdatesBlob", "DeltaBlob"), check_blob),
    "columns": Target(make_columns, check_columns),
    "value": Target(make_value, check_value),
    "subject": Target(make_subject, check_subject),
    "lines": Target(make_lines, check_lines),
    "formula": Target(make_formula, check_formula),
    "function": Target(make_call, check_call),
    "stream": Target(make_stream, check_stream),
}
