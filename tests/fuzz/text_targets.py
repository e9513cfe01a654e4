"""Fuzz targets for text: subjects and ids, lines of updates, formulas, and arguments of functions."""

import json
from typing import Any

from rebaser.change_set.replies import inbox_allowed
from rebaser.cli.sending.jsonl import JsonLinesParser
from rebaser.dvu.cel import evaluate
from rebaser.dvu.functions.base import FunctionError
from rebaser.dvu.functions.registry import builtins
from rebaser_core.blobs.address import check_address
from rebaser_core.cel.formulas import names_in
from rebaser_core.encoding.envelope import CBOR, loads
from rebaser_core.errors import RebaserError
from rebaser_core.ids import check_token, ulid_time_ms
from rebaser_core.messages.headers.traces import read_trace, trace_headers
from rebaser_core.streams.subjects import Subjects
from tests.fuzz.mutate import Mutator, as_cbor
from tests.fuzz.payload_targets import INPUTS
from tests.fuzz.refusals import refused, told

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


POSITION = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
STATES = ("vendor=1", "a=1, b@c=2,d=", "x/y=~!\t,z=0")


def make_trace(mutator: Mutator) -> bytes:
    parent, state = mutator.text(POSITION), mutator.text(mutator.chance.choice(STATES))
    return f"{parent}\n{state}".encode(errors="surrogatepass")


def check_trace(data: bytes) -> None:
    """What is read can be sent on, and is read the same there."""
    parent, _, state = data.decode(errors="surrogateescape").partition("\n")
    for given in (parent, POSITION):
        context = read_trace({"traceparent": given, "tracestate": state})
        if context is not None:
            assert read_trace(trace_headers(context)) == context


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
    """Check that a file gives the same updates or the same error however it is cut into chunks."""
    found = []
    for size in (len(data) or 1, max(7, len(data) // 200)):
        lines = JsonLinesParser()
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


def make_formula(mutator: Mutator) -> bytes:
    text = mutator.chance.choice(FORMULAS)
    if mutator.often(0.3):
        text = f"({text}) {mutator.chance.choice(WORDS)} ({mutator.chance.choice(FORMULAS)})"
    return mutator.text(text, WORDS).encode(errors="surrogatepass")


def check_formula(data: bytes) -> None:
    text = data.decode(errors="surrogateescape")
    refused(lambda: names_in(text))
    try:
        value = evaluate.evaluate(INPUTS, text)
    except evaluate.FormulaError as error:
        value, code = str(error).encode().decode(), error.code
    else:
        code = "ok"
    assert code
    repr(value)


def make_call(mutator: Mutator) -> bytes:
    """Return a built-in function and its arguments, as JSON."""
    name = mutator.chance.choice(sorted(builtins()))
    params = {"format": "{a:>10} {b!r:.2f}", "separator": ", ", "digits": 2, "default": 0, "key": "k", "expr": "a + b"}
    return as_cbor([name, mutator.tree(INPUTS), mutator.tree(params)])


def check_call(data: bytes) -> None:
    """Check a call. Functions get only values that a request may have, so other values are skipped."""
    call = refused(lambda: loads(CBOR, data))
    match call:
        case [str(name), dict(inputs), dict(params)] if name in builtins():
            function = builtins()[name]
            given = inputs if function.takes == "names" else list(inputs.values())
            try:
                function.call(given, params)  # type: ignore[misc]
            except (FunctionError, evaluate.FormulaError):
                pass
            except (ArithmeticError, ValueError, TypeError, LookupError, AttributeError):
                pass  # becomes the fault of the value, as for any plug-in
