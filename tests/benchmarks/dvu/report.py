"""Prints all results as Markdown tables."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.benchmarks.dvu.lines import Line
from tests.benchmarks.dvu.peers import PEERS
from tests.benchmarks.evaluate import SHAPES

NAMES = {
    "chain": "chain",
    "fanout": "fan-out",
    "fanin": "fan-in (sum)",
    "running": "running totals",
    "grid": "grid",
    "dag": "random DAG",
    "scale_free": "scale-free DAG",
    "islands": "islands of 100",
}
AIMS = {1_000: 1.3, 100_000: 1.8, 1_000_000: 3.0}  # maximum ratio to an empty job, if all values are set
NOTHING = "-"


def report(lines: Sequence[Line], about: str) -> str:
    """Return the report. `about` describes the machine, the versions, and what was asked for."""
    parts = [
        "# Dependent values updates",
        about,
        *_alone(lines),
        *_cutoff(lines),
        *_end_to_end(lines),
        *_peers(lines),
        *_curves(lines),
    ]
    return "\n\n".join(parts) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [list(head), ["---"] * len(head), *map(list, rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.3g}"


def rate(values: float, taken: float) -> str:
    """Return values per second, from milliseconds."""
    each = values / taken * 1000 if taken else 0.0
    return f"{each / 1e6:.2f} M/s" if each >= 1e5 else f"{each / 1e3:.1f} k/s" if each >= 1e3 else f"{each:.0f} /s"


def _part(lines: Sequence[Line], part: str) -> list[Line]:
    return [one for one in lines if one["part"] == part and "why" not in one]


def _in_order(found: Sequence[Any], order: Sequence[Any]) -> list[Any]:
    return [one for one in order if one in found] + sorted({one for one in found if one not in order})


def _by_shape(lines: Sequence[Line], edits: Sequence[str], cell: Callable[[Line], str]) -> str:
    """Return a table with a row for each shape and a column for each edit."""
    at = {(one["shape"], one["edit"]): one for one in lines}
    rows = []
    for shape in _in_order([one["shape"] for one in lines], SHAPES):
        cells = [cell(at[shape, edit]) if (shape, edit) in at else NOTHING for edit in edits]
        rows.append([NAMES.get(shape, shape), *cells])
    return _table(["shape", *edits], rows)


def _edits(lines: Sequence[Line]) -> list[str]:
    return list(dict.fromkeys(one["edit"] for one in lines))


def _sizes(lines: Sequence[Line]) -> Iterator[tuple[int, list[Line]]]:
    for size in sorted({one["size"] for one in lines}):
        yield size, [one for one in lines if one["size"] == size]


def _alone(lines: Sequence[Line]) -> Iterator[str]:
    found = [one for one in _part(lines, "alone") if not one["gated"]]
    if found:
        yield "## The DVU alone"
        yield (
            "Plan, Spark and reading results, in ms (times an empty one-packet job measured in between; values affected"
            " per second). An edit of more values than a shape has to set is left out."
        )
    for size, some in _sizes(found):
        aim = f"; aim for all: {AIMS[size]} times the empty job" if size in AIMS else ""
        floor = sorted(one["empty"] for one in some)[len(some) // 2]
        yield f"### {size:,} values (empty job {ms(floor)} ms{aim})"
        yield _by_shape(
            some,
            _edits(some),
            lambda one: f"{ms(one['all'])} ({one['ratio']:.2f}x; {rate(one['affected'], one['all'])})",
        )


def _cutoff(lines: Sequence[Line]) -> Iterator[str]:
    found = [one for one in _part(lines, "alone") if one["gated"]]
    if found:
        yield "## Early cutoff"
        yield (
            "Behind each value that is set stands a gate that lets nothing below 1 through. ms where everything behind"
            " it changes / where nothing does (values affected: values that changed in either case)."
        )
    for size, some in _sizes(found):
        edits = list(dict.fromkeys(one["edit"].split()[0] for one in some))
        at = {(one["shape"], one["edit"]): one for one in some}
        rows = []
        for shape in _in_order([one["shape"] for one in some], SHAPES):
            cells = [NAMES.get(shape, shape)]
            for edit in edits:
                pair = [at.get((shape, f"{edit} {how}")) for how in ("through", "cutoff")]
                if pair[0] is None or pair[1] is None:
                    cells.append(NOTHING)
                    continue
                one, two = pair[0], pair[1]
                counts = f"{one['affected']:,.0f}: {one['changed']:,.0f} / {two['changed']:,.0f}"
                cells.append(f"{ms(one['all'])} / {ms(two['all'])} ({counts})")
            rows.append(cells)
        yield f"### {size:,} values and a gate for each that is set"
        yield _table(["shape", *edits], rows)


def _end_to_end(lines: Sequence[Line]) -> Iterator[str]:
    found = _part(lines, "end-to-end")
    alone = {(one["shape"], one["size"], one["edit"]): one for one in _part(lines, "alone")}
    if found:
        yield "## End to end through the server"
        yield (
            "From commit to covered as a client sees it, in ms (how much more than the DVU alone took in this run;"
            " values affected per second). `empty`: a change set of two values, in between."
        )

    def cell(one: Line) -> str:
        beside = alone.get((one["shape"], one["size"], one["edit"]))
        if beside is None:
            return ms(one["ms"])
        return f"{ms(one['ms'])} ({one['ms'] - beside['all']:+.0f}; {rate(beside['affected'], one['ms'])})"

    for size, some in _sizes(found):
        floor = sorted(one["empty"] for one in some)[len(some) // 2]
        for gated in (False, True):
            if these := [one for one in some if (" " in one["edit"]) == gated]:
                yield f"### {size:,} values{', and gates' if gated else ''} (empty {ms(floor)} ms)"
                yield _by_shape(these, _edits(these), cell)


def _peers(lines: Sequence[Line]) -> Iterator[str]:
    found = [one for one in lines if one["part"] == "peers"]
    if not found:
        return
    known = {f"{one['peer']} {one['version']}" for one in found if one.get("version")}
    yield f"## Against others{''.join(f', {one}' for one in sorted(known))}"
    yield (
        "ms to set the values and bring all up to date, graph loaded; `rebaser` is the DVU alone. `bare` is the limit:"
        " compiled loops over arrays in one process, no system around them. Dask and the joins compute all whatever the"
        " edit. All values of every peer that got to its end were checked (1e-9 relative). In a cell without a figure:"
        " why; not asked for: `-`."
    )
    ours = [one | {"peer": "rebaser", "ms": one["all"]} for one in _part(lines, "alone") if not one["gated"]]
    for size, some in _sizes([*found, *(one for one in ours if any(one["size"] == other["size"] for other in found))]):
        for edit in _edits([one for one in some if one["part"] == "peers" and "edit" in one]):
            yield f"### {size:,} values, edit {edit}"
            yield _peer_table(some, edit)


def _peer_table(lines: Sequence[Line], edit: str) -> str:
    at: dict[tuple[str, str], str] = {}
    for one in lines:
        key = (one["peer"], one["shape"])
        if one.get("edit") == edit and "why" not in one:
            at[key] = ms(one["ms"])
        elif "why" in one:
            at.setdefault(key, str(one["why"]).partition(":")[0])
    shapes = _in_order([one["shape"] for one in lines], SHAPES)
    peers = [one for one in ("rebaser", *PEERS) if any((one, shape) in at for shape in shapes)]
    rows = [[peer, *(at.get((peer, shape), NOTHING) for shape in shapes)] for peer in peers]
    return _table(["", *(NAMES.get(shape, shape) for shape in shapes)], rows)


def _curves(lines: Sequence[Line]) -> Iterator[str]:
    found = _part(lines, "curves")
    if not found:
        return
    yield "## Cost curves (islands, the DVU alone, ms)"
    for curve, title in (("affected", "Against the values affected"), ("size", "Against the size, affected constant")):
        some = [one for one in found if one["curve"] == curve]
        yield f"### {title}"
        yield _table(
            ["values", "affected", "plan", "Spark", "rest", "all", "values/s"],
            [
                [
                    f"{one['size']:,}",
                    f"{one['affected']:,.0f}",
                    *(ms(one[name]) for name in ("plan", "spark", "rest", "all")),
                    rate(one["affected"], one["all"]),
                ]
                for one in sorted(some, key=lambda one: (one["size"], one["affected"]))
            ],
        )
