"""Compiled code, groups, and Python value by value give the same results, to the byte: values, faults, what changed."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from rebaser.dvu import fingerprint
from rebaser.dvu.compiled import linker, loader
from rebaser.dvu.functions import Function, FunctionError, FunctionRegistry, builtins
from rebaser.dvu.wire.column import IN_ERROR, NEVER_COMPUTED, NO_VALUE, Item
from rebaser.dvu.wire.equality import baseline, fault_digest
from rebaser.dvu.wire.packet import DefinitionTemplate, PacketBuilder, Results
from rebaser.dvu.worker import evaluator
from rebaser.dvu.worker.evaluate import evaluate_packet
from rebaser_core import thresholds
from rebaser_core.thresholds import Thresholds
from rebaser_core.values import Json
from tests.support.random_input import examples

WHOLE = [0, 1, -1, 2, 3, -7, 10, 255, 2**31, -(2**31), 2**52 + 1, 2**53, 2**53 + 1, -(2**53) - 1, 2**62, 3 * 10**18]
DOUBLES = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    2.5,
    0.1,
    0.2,
    -0.3,
    1.005,
    7.0,
    1e16,
    -1e16,
    5e-324,
    1e308,
    -1e308,
    2.0**53,
]
PLAIN: list[Json] = [None, True, False]
OTHER: list[Item] = [
    "text",
    "",
    "a text that is longer than its digest",
    [1, 2.5, None],
    [],
    {"k": 3},
    IN_ERROR,
    NO_VALUE,
]
TEXTS = ["", "x", "Größe", "\u0130", "e\u0301", "\U0001f600", "a\0b", "a text that is longer than its digest", "y" * 24]
EDGES: list[Item] = [2**63 - 1, -(2**63), 2**63 - 2, 1.7976931348623157e308, 2.2250738585072014e-308]

FOR_NUMBERS = ["sum", "product", "mean", "min", "max", "count"]
BINARY = ["+", "-", "*", "/", "%", "==", "!=", "<", "<=", ">", ">=", "&&", "||"]
UNARY = ["-", "!", "math.abs", "math.ceil", "math.floor", "math.round", "math.sqrt", "int", "double"]
LITERALS = [
    "0",
    "1",
    "2",
    "-3",
    "7",
    "0.5",
    "2.0",
    "-0.0",
    "1e300",
    "9223372036854775807",
    "true",
    "false",
    "null",
    "0x1F",
]
ODD = ["'text'", "size([a])", "[a, b][0]", "1u", "a in [1, 2]", "{'k': a}.k", "string(a)", "math.greatest(a, b, c)"]


def _shifted(inputs: Any, params: Any) -> Any:
    """A plug-in that has only a vector form, which fails for texts."""
    return np.asarray(inputs["x"], np.float64) * 2 + params.get("by", 0)


def _moody(columns: list[Any], params: Any) -> Any:
    """A plug-in whose results vary, but are the same in vector and scalar form."""
    found = [_mood(list(row)) for row in zip(*map(list, columns), strict=True)]
    if any(isinstance(one, str) for one in found):
        raise ValueError("not today")
    return found[:-1] if any(isinstance(one, list) for one in found) else tuple(found)


def _mood(values: list[Any]) -> Any:
    first = values[0].item() if isinstance(values[0], np.generic) else values[0]
    if first == "":
        return FunctionError("nothing at all")
    return first if first != 0.5 else float("inf")


def _moody_alone(values: list[Any], params: Any) -> Any:
    found = _mood(values)
    if isinstance(found, Exception):
        raise found
    return found


PLUG_INS = FunctionRegistry(
    {
        **builtins(),
        "shifted": Function(name="shifted", vector=_shifted),
        "moody": Function(name="moody", call=_moody_alone, vector=_moody, takes="values"),
    },
    {},
)


def formula(rng: random.Random, depth: int) -> str:
    roll = rng.random()
    if depth == 0 or roll < 0.15:
        return rng.choice(["a", "b", "c"]) if rng.random() < 0.7 else rng.choice(LITERALS)
    if roll < 0.65:
        return f"({formula(rng, depth - 1)} {rng.choice(BINARY)} {formula(rng, depth - 1)})"
    if roll < 0.8:
        return f"{rng.choice(UNARY)}({formula(rng, depth - 1)})"
    if roll < 0.86:
        name = rng.choice(["greatest", "least"])
        return f"math.{name}({formula(rng, depth - 1)}, {formula(rng, depth - 1)})"
    if roll < 0.99:
        condition = f"{formula(rng, depth - 1)} {rng.choice(BINARY[5:])} {formula(rng, depth - 1)}"
        return f"({condition} ? {formula(rng, depth - 1)} : {formula(rng, depth - 1)})"
    return rng.choice(ODD)


def value(rng: random.Random) -> Item:
    roll = rng.random()
    if roll < 0.3:
        return rng.choice(WHOLE)
    if roll < 0.6:
        return rng.choice(DOUBLES)
    if roll < 0.75:
        return rng.randrange(-1000, 1000)
    if roll < 0.88:
        return rng.choice(
            [
                rng.uniform(-10, 10),
                round(rng.uniform(-10, 10), 2),
                # Rounded to two digits: halves as decimals, and almost halves as binary numbers.
                rng.randrange(-1999, 2000, 2) * 5 / 1000,
                rng.gauss(0, 1) * 10.0 ** rng.randrange(30),
            ]
        )
    if roll < 0.95:
        return rng.choice(PLAIN)
    return rng.choice(EDGES if roll < 0.98 else OTHER)


def shape(rng: random.Random) -> DefinitionTemplate:
    roll = rng.random()
    if roll < 0.5:
        names = tuple((name, -1) for name in "abc")
        return DefinitionTemplate(
            "cel", (*names, ("d", 2)) if rng.random() < 0.1 else names, {"expr": formula(rng, rng.randrange(1, 4))}
        )
    if roll < 0.6:
        given = [name for name in ("condition", "then", "else") if rng.random() < 0.8]
        rng.shuffle(given)
        params = {name: rng.choice([1, -2.5, True, None, "text"]) for name in ("then", "else") if rng.random() < 0.3}
        return DefinitionTemplate("if", tuple((name, -1) for name in given), params)
    if roll < 0.7:
        name = rng.choice(["abs", "round"])
        digits: dict[str, Json] = {"digits": rng.choice([0, 1, 2, 5, 15, -2, 18, 1.5])} if rng.random() < 0.7 else {}
        return DefinitionTemplate(
            name, (("x", -1),) if rng.random() < 0.95 else (("x", 2),), digits if name == "round" else {}
        )
    if roll < 0.9:
        return text_shape(rng)
    name = rng.choice(["sum", "product", "mean", "min", "max", "count", "coalesce", "nope"])
    params = {"default": rng.choice([0, 1.5, None, "text"])} if name == "coalesce" and rng.random() < 0.5 else {}
    return DefinitionTemplate(name, (("x", -1), ("y", rng.randrange(8))), params)


def text_shape(rng: random.Random) -> DefinitionTemplate:
    name = rng.choice(["concat", "join", "format", "length", "shifted", "moody", "union", "lookup"])
    if name == "format":
        fields = ["{a}", "{b:>5}", "{b:.2f}", "{a:x}", "{{}}", "-", "{c}", "{a:q}", "{c!r}"]
        template = "".join(rng.choice(fields[: rng.choice([3, 6, 9])]) for _ in range(rng.randrange(4)))
        return DefinitionTemplate(name, (("a", -1), ("b", rng.choice([-1, -1, -1, 2]))), {"template": template})
    if name in ("length", "shifted"):
        return DefinitionTemplate(name, (("x", -1),) if rng.random() < 0.9 else (("x", 2),), {})
    if name == "lookup":
        return DefinitionTemplate(name, (("in", rng.choice([-1, 2])), ("key", -1)), {"default": 1})
    params = {"separator": rng.choice([", ", "", "\u20ac"])} if name == "join" and rng.random() < 0.5 else {}
    return DefinitionTemplate(name, (("x", -1), ("y", rng.randrange(4))), params)


def graph(rng: random.Random, nodes: int) -> PacketBuilder:
    """Draw a packet of a first update: everything is dirty, and there are no previous values."""
    wanted, instead = rng.choice(
        [((float,), DOUBLES), ((int,), WHOLE), ((float, int), DOUBLES), ((object,), []), ((), TEXTS)]
    )
    constants = [value(rng) for _ in range(rng.randrange(1, 12))]
    constants = [item if isinstance(item, wanted) else rng.choice(instead) for item in constants]  # type: ignore[arg-type]
    packet = PacketBuilder(1, fingerprint.code(), constants=constants)
    packet.templates = [shape(rng) for _ in range(rng.randrange(1, 6))]
    for node in range(nodes):
        packet.template.append(rng.randrange(len(packet.templates)))
        recent = range(max(0, node - rng.choice([1, 5, nodes])), node)
        for _ in range(packet.templates[packet.template[-1]].arity):
            constant = not node or rng.random() < 0.4
            packet.refs.append(~rng.randrange(len(constants)) if constant else rng.choice(recent))
    packet.dirty = bytearray(b"\1" * nodes)
    packet.old = [NEVER_COMPUTED] * nodes
    packet.functions = PLUG_INS.fingerprints({one.function for one in packet.templates})
    return packet


FRAIL = ["a / b", "a + b", "a - b", "2 * a + b", "a > b ? a / b : b", "math.greatest(a, b)"]


def frail(rng: random.Random, nodes: int) -> PacketBuilder:
    """Draw a packet like `graph`, in which each formula fails for some numbers because of a zero, and another edit
    repairs it."""
    kind = rng.choice([float, float, int])
    constants: list[Item] = [kind(one) for one in rng.sample([-1, 1, 2, 3, 0], 3)]
    packet = PacketBuilder(1, fingerprint.code(), constants=constants)
    packet.templates = [
        DefinitionTemplate("cel", (("a", -1), ("b", -1)), {"expr": rng.choice(FRAIL)}) for _ in range(3)
    ]
    packet.templates += [DefinitionTemplate(rng.choice(FOR_NUMBERS), (("x", 2),), {})]
    for node in range(nodes):
        packet.template.append(rng.randrange(len(packet.templates)))
        for _ in range(2):
            constant = not node or rng.random() < 0.5
            packet.refs.append(~rng.randrange(3) if constant else rng.randrange(max(0, node - 4), node))
    packet.dirty = bytearray(b"\1" * nodes)
    packet.old = [NEVER_COMPUTED] * nodes
    packet.functions = PLUG_INS.fingerprints({one.function for one in packet.templates})
    return packet


def zero_or_not(rng: random.Random) -> Item:
    return rng.choice([0.0, 0.0, 0, 1.0, 2.0])


def edited(
    rng: random.Random, packet: PacketBuilder, first: list[bytes], value: Callable[[random.Random], Item] = value
) -> PacketBuilder:
    """Return the packet of the next update: with previous values, some other constants, and some dirty nodes."""
    old: list[Item] = [NEVER_COMPUTED] * len(packet.template)
    for data in first:
        found = Results.decode(data)
        faults = iter(found.faults)
        for node, item in zip(found.nodes.tolist(), found.values, strict=True):
            if item is IN_ERROR:
                fault = next(faults)
                old[node] = IN_ERROR if isinstance(fault, int) else fault_digest(*fault)
            else:
                old[node] = baseline(item)  # type: ignore[arg-type]
    changed = {at for at in range(len(packet.constants)) if rng.random() < 0.3}
    for at in changed:
        packet.constants[at] = value(rng)
    starts = [0]
    for one in packet.template:
        starts.append(starts[-1] + packet.templates[one].arity)
    for node in range(len(packet.template)):
        inputs = packet.refs[starts[node] : starts[node + 1]]
        packet.dirty[node] = rng.random() < 0.05 or any(ref < 0 and ~ref in changed for ref in inputs)
    packet.old = [value(rng) if rng.random() < 0.02 else item for item in old]
    packet.old = [baseline(item) if isinstance(item, (list, dict, str)) else item for item in packet.old]
    packet.old = [IN_ERROR if item is NO_VALUE else item for item in packet.old]
    return packet


def every_way(packet: PacketBuilder, patch: pytest.MonkeyPatch, rng: random.Random) -> list[bytes]:
    """Compute a packet in every way, check that the results are equal, and return them."""
    data = packet.encode()
    found = evaluate_packet(data, PLUG_INS)
    with patch.context() as way:
        for those in (Thresholds.lowest(), Thresholds.highest(), Thresholds.drawn(rng)):
            way.setattr(thresholds, "now", those)
            assert shown(evaluate_packet(data, PLUG_INS)) == shown(found)
        few = {"group_max_values": rng.choice([1, 2, 7, 100]), "group_retry_max_values": rng.choice([1, 3, 50])}
        way.setattr(thresholds, "now", replace(ALWAYS, group_min_values=rng.choice([1, 2, 5]), **few))
        assert shown(evaluate_packet(data, PLUG_INS)) == shown(found)
        way.setattr(linker, "link", lambda *_: None)
        assert shown(evaluate_packet(data, PLUG_INS)) == shown(found)
        way.setattr(loader, "_kernel", None)
        way.setattr(thresholds, "now", replace(thresholds.now, kernel_load_min_elements=1 << 30))
        assert shown(evaluate_packet(data, PLUG_INS)) == shown(found)
        way.setattr(evaluator.Evaluator, "_phase_flags", lambda *_: None)
        assert shown(evaluate_packet(data, PLUG_INS)) == shown(found)
    return found


def shown(results: list[bytes]) -> tuple[list[Any], list[Any]]:
    """Return changed nodes with their values, and faults, from any number of parts."""
    parts = [Results.decode(data) for data in results]
    assert [(part.part, part.last) for part in parts] == [(at, at == len(parts) - 1) for at in range(len(parts))]
    values = [(node, repr(item)) for part in parts for node, item in zip(part.nodes.tolist(), part.values, strict=True)]
    return values, [fault for part in parts for fault in part.faults]


ALWAYS = Thresholds(
    kernel_load_min_elements=0,
    kernel_call_min_elements=0,
    translate_min_nodes=0,
    kernel_backoff_max_nodes=1,
    reorder_elements_per_stop=1 << 40,
)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Use compiled code wherever it can compute, even where it is slower."""
    monkeypatch.setattr(thresholds, "now", ALWAYS)
    assert loader.load()
    return monkeypatch  # type: ignore[return-value]


@examples(1.2, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), nodes=st.integers(1, 60))
def test_compiled_code_and_python_agree(always: pytest.MonkeyPatch, seed: int, nodes: int) -> None:
    rng = random.Random(seed)
    packet = graph(rng, nodes)
    every_way(edited(rng, packet, every_way(packet, always, rng)), always, rng)


@examples(0.6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), nodes=st.integers(5, 40))
def test_what_fails_and_what_is_mended_is_the_same_for_compiled_code(
    always: pytest.MonkeyPatch, seed: int, nodes: int
) -> None:
    """No later result uses the number that was stored before a value became an error."""
    rng = random.Random(seed)
    packet = frail(rng, nodes)
    every_way(edited(rng, packet, every_way(packet, always, rng), zero_or_not), always, rng)


NUMBERS = [*WHOLE, -2, 3_037_000_500, -3_037_000_500, -(2**62), 2**63 - 1, 2**63 - 2, -(2**63), -(2**63) + 1, *DOUBLES]
OF_TWO = [
    *("a + b", "a - b", "a * b", "a / b", "a % b", "-a", "math.abs(a)", "math.greatest(a, b)", "math.least(a, b)"),
    *("a > b ? a : b", "a == b ? a + 1 : b - 1", "a <= b && !(a >= -b) ? a : b", "a != b || a < 0 ? b : a * 2"),
    *("math.round(a) + math.floor(b)", "int(a) - 1", "a == b", "(a * b + 1) / 2", "a + b > 0.5 ? a : -1.5"),
    *("-0.0", "a * -0.0", "a > b ? -0.0 : 0.0"),
]


def test_any_two_numbers_give_what_they_give_in_python(always: pytest.MonkeyPatch) -> None:
    """Checks every operator and function of two or three numbers where they overflow, vanish, come out even, or do
    not."""
    shapes = [DefinitionTemplate("cel", (("a", -1), ("b", -1)), {"expr": expr}) for expr in OF_TWO]
    shapes += [DefinitionTemplate(name, (("x", count),), {}) for name in FOR_NUMBERS for count in (2, 3)]
    pairs = [(~left, ~right) for left in range(len(NUMBERS)) for right in range(len(NUMBERS))]
    packet = PacketBuilder(1, fingerprint.code(), {"cel": "", **dict.fromkeys(FOR_NUMBERS, "")}, shapes, [*NUMBERS])
    for number, one in enumerate(shapes):
        packet.template += [number] * len(pairs)
        packet.refs += [ref for pair in pairs for ref in (*pair, pair[0])[: one.arity]]
    packet.dirty, packet.old = bytearray(b"\1" * len(packet.template)), [NEVER_COMPUTED] * len(packet.template)
    data = packet.encode()
    found = shown(evaluate_packet(data))
    always.setattr(linker, "link", lambda *_: None)
    assert shown(evaluate_packet(data)) == found


def test_halves_are_rounded_as_their_decimals_say(always: pytest.MonkeyPatch) -> None:
    """1.005 as a double is a little less than its decimals, and is nevertheless rounded to 1.01."""
    halves = [
        sign * (whole + 5) / 10**digits for digits in (1, 2, 3) for whole in range(0, 3000, 10) for sign in (1, -1)
    ]
    shapes = [DefinitionTemplate("round", (("x", -1),), {"digits": digits}) for digits in (0, 1, 2)]
    packet = PacketBuilder(1, fingerprint.code(), {"round": ""}, shapes, [*halves])
    for number in range(len(shapes)):
        packet.template += [number] * len(halves)
        packet.refs += [~at for at in range(len(halves))]
    packet.dirty, packet.old = bytearray(b"\1" * len(packet.template)), [NEVER_COMPUTED] * len(packet.template)
    data = packet.encode()
    found = shown(evaluate_packet(data))
    always.setattr(linker, "link", lambda *_: None)
    assert shown(evaluate_packet(data)) == found
