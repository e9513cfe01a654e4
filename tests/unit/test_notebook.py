"""What notebooks display of the client's results, and values as Arrow tables and data frames."""

import sys
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import Any, cast

import pytest

from rebaser_client.admin.explanations import ExplainedValue, Explanation
from rebaser_client.admin.status import ChangeSetStatus, Overview
from rebaser_client.log.changes import Change, Diff, LogEntry
from rebaser_client.notebook import Values
from rebaser_core.commit import Authorship, Commit, Computed, Decision, Kind, Outcome
from rebaser_core.errors import ConfigError
from rebaser_core.explain.reason import WaitReason
from rebaser_core.explain.values import ValueExplanation, ValueInput
from rebaser_core.ids import RequestId
from rebaser_core.notebook import MAX_BYTES, json_text
from rebaser_core.response import Conflict, Conflicts, EnqueueUpdatesResponse, Failure, Success
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.updates import Derive, Remove, Set, Unset, Update
from rebaser_core.values import Fault, Json, State, Value

HOSTILE = "<script>alert('x')</script>\"&" + "<" * 5_000
TAGS = {"table", "caption", "thead", "tbody", "tr", "th", "td", "p"}


def ok(value: Json) -> Value:
    return Value(value, State.OK)


class Page(HTMLParser):
    """The tags and the texts of the cells of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.cells: list[str] = []
        self.rest = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not attrs
        self.tags.append(tag)
        if tag == "td":
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        if self.tags[-1] == "td":
            self.cells[-1] += data
        else:
            self.rest += f"{data} "


def page(shown: object) -> Page:
    html = cast("Any", shown)._repr_html_()
    assert len(html.encode()) <= MAX_BYTES
    read = Page(html)
    assert set(read.tags) <= TAGS
    return read


def test_values_are_a_table() -> None:
    failed = Value(None, State.ERROR, Fault("failed", "no number", "a"))
    values = Values({"a": ok("b<c"), "d": failed, "e": Value(None, State.UNSET), "f": Value([1, None], State.STALE)})
    assert page(values).cells == [
        *("a", "ok", '"b<c"'),
        *("d", "error", "failed: no number"),
        *("e", "unset", ""),
        *("f", "stale", "[1, null]"),
    ]
    assert page(values).rest == "4 values id state value "


def test_a_table_ends_after_some_rows_and_says_so() -> None:
    shown = page(Values({f"v{number}": ok(number) for number in range(1_000)}))
    assert shown.cells[-3:] == ["v19", "ok", "19"]
    assert "and 980 more" in shown.rest
    assert "more" not in page(Values({f"v{number}": ok(number) for number in range(20)})).rest


def test_a_large_value_is_not_encoded_whole() -> None:
    class Endless(list[Json]):
        def __iter__(self) -> Any:
            yield from range(1_000)
            raise AssertionError("read on")

    assert json_text(Endless([1])).startswith("[0, 1, 2")
    assert len(json_text("x" * 1_000_000)) < 1_000


def hostile() -> list[object]:
    text, value = HOSTILE, ok(HOSTILE)
    definition = Derive(text, text, {text: text})
    decision = Decision(1, RequestId(text), Outcome.ERROR, 0, text, text)
    time = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    explained = ValueExplanation(text, value, definition, 1, text, text, (ValueInput(text, text, value),) * 100)
    change = Change(text, Set(text, text), definition)
    status = ChangeSetStatus(text, text, 1, True, 2, 1, True, problem=text)
    reasons = (WaitReason(text, text, text),) * 100
    entry = LogEntry(1, time, Kind.REBASE, ((decision, Authorship(text, text)),) * 100, None, cast("Any", None))
    return [
        Values({f"{number}{text}": value for number in range(100)}),
        Diff(1, 2, (change,) * 100, ((text, value, value),)),
        entry,
        Overview([], [status] * 100, [], None),
        Explanation(cast("Any", None), reasons),
        ExplainedValue(explained, None),
        EnqueueUpdatesResponse(RequestId(text), text, text, Failure(text, text)),
        EnqueueUpdatesResponse(RequestId(text), text, text, Conflicts(text, 1, (Conflict(text, text),) * 100)),
        state_of(*(Set(f"{number}{text}", text) for number in range(100))),
    ]


def state_of(*updates: Update, computed: Sequence[Computed] = (), owed: Sequence[Update] = ()) -> ChangeSetState:
    """Return a state with `updates`, then `computed`, and then `owed`, whose dependents are not up to date."""
    state = ChangeSetState()
    state.fold(1, Commit("1", 0, Kind.REBASE, 0, "o", None, 0, delta=updates))
    state.fold(2, Commit("2", 1, Kind.DVU, 0, "o", None, 1, delta=tuple(computed)))
    if owed:
        state.fold(3, Commit("3", 2, Kind.REBASE, 0, "o", None, 1, delta=tuple(owed)))
    return state


@pytest.mark.parametrize("shown", hostile(), ids=lambda one: type(one).__name__)
def test_nothing_becomes_markup_and_everything_is_bounded(shown: object) -> None:
    read = page(shown)
    assert any("<script>" in cell for cell in read.cells)
    assert all(len(cell) <= 200 for cell in read.cells)


def test_a_diff_shows_definitions_and_results() -> None:
    changes = Change("a", None, Set("a", 1)), Change("b", Set("b", 1), Derive("b", "sum", {"x": "a"}), known=False)
    shown = page(Diff(3, 5, changes, (("c", ok(1), ok(2.5)),)))
    assert shown.cells == ["a", "", "1", "b", "unknown", "sum(x)", "c", "1", "2.5"]
    assert shown.rest == "2 definitions and 1 derived values differ id at 3 at 5 "


def test_an_explained_value_shows_its_inputs_and_path() -> None:
    found = ValueExplanation(
        *("b", Value(None, State.STALE), Derive("b", "sum", {"x": "a"}), 1, "an input changed"),
        inputs=(ValueInput("x", "a", ok(1)), ValueInput("y", "c/*", matches=3)),
        path=("b", "a"),
    )
    cells = page(ExplainedValue(found, None)).cells
    rows = dict(zip(cells[::2], cells[1::2], strict=True))
    assert rows["path"] == "b → a"
    assert rows["input x"] == "1"
    assert rows["input y"] == "c/*"
    assert "what to do" not in rows


VALUES = Values(
    {
        "n": ok(2),
        "t": ok("ä"),
        "o": ok({"k": [True]}),
        "big": ok(2**63 - 1),
        "e": Value(None, State.ERROR, Fault("failed", "why", "n")),
        "u": Value(None, State.UNSET),
        "z": ok(None),
    }
)
ROWS = [
    ("n", "ok", "integer", 2.0, None, "2", None, None, None),
    ("t", "ok", "text", None, "ä", '"ä"', None, None, None),
    ("o", "ok", "object", None, None, '{"k":[true]}', None, None, None),
    ("big", "ok", "integer", 2.0**63, None, "9223372036854775807", None, None, None),
    ("e", "error", None, None, None, None, "failed", "why", "n"),
    ("u", "unset", None, None, None, None, None, None, None),
    ("z", "ok", "null", None, None, "null", None, None, None),
]
COLUMNS = ["id", "state", "kind", "number", "text", "json", "error_code", "error_message", "error_origin"]


def test_values_as_an_arrow_table() -> None:
    table = VALUES.to_arrow()
    assert table.column_names == COLUMNS
    assert [tuple(row.values()) for row in table.to_pylist()] == ROWS
    assert [str(field.type) for field in table.schema] == ["string"] * 3 + ["double"] + ["string"] * 5
    empty = Values().to_arrow()
    assert (empty.num_rows, empty.schema) == (0, table.schema)
    many = Values({f"v{number}": ok(number) for number in range(20_001)}).to_arrow()
    assert many.column("number").to_pylist() == list(range(20_001))


def varied() -> ChangeSetState:
    """A state in which every kind of value occurs in every state that it can have."""
    values: list[Json] = [
        None,
        True,
        False,
        7,
        -(2**63),
        0.1,
        -0.0,
        1e300,
        5e-324,
        "ä",
        '"',
        "",
        [],
        [1.5, "x"],
        {"k": 2},
    ]
    sets: list[Update] = [Set(f"s{number}", value) for number, value in enumerate(values)]
    derived = [Derive(f"d{number}", "sum", {"x": "s0"}) for number in range(len(values) + 1)]
    late = [Derive(f"l{number}", "sum", {"x": "s1"}) for number in range(len(values) + 1)]
    fault = Fault("failed", "why", "s0")
    results = [Computed(f"d{number}", value, None) for number, value in enumerate(values)]
    results += [Computed(f"l{number}", value, None) for number, value in enumerate(values)]
    results += [Computed(f"{one}{len(values)}", None, fault) for one in "dl"]
    updates = [*sets, Unset("u"), Set("gone", 1), *derived, *late]
    return state_of(*updates, computed=results, owed=[Set("s1", "new"), Remove("gone"), Unset("s2")])


def test_a_state_as_an_arrow_table_is_that_of_its_values() -> None:
    """It comes from the columns of the state, not from the values."""
    for state in (varied(), state_of(Set("a", 1)), state_of(Set("a", "x")), ChangeSetState()):
        table = state.to_arrow()
        assert table.schema == VALUES.to_arrow().schema
        assert table.to_pylist() == Values(state.values()).to_arrow().to_pylist()
    states = Counter(varied().to_arrow().column("state").to_pylist())
    assert states == {"ok": 29, "stale": 16, "error": 1, "unset": 2}
    frame = varied().to_pandas()
    assert list(frame.columns) == COLUMNS
    assert frame[frame.id == "s5"].json.item() == "0.1"


def test_a_state_and_an_answer_are_tables() -> None:
    shown = page(state_of(Set("a", 1), Derive("b", "sum", {"x": "a"}), Unset("c"), owed=[Set("a", 2)]))
    assert shown.cells == ["a", "ok", "2", "b", "stale", "null", "c", "unset", ""]
    assert shown.rest == "3 values after commit 3, 1 of them stale id state value "
    many = page(state_of(*(Set(f"v{number}", number) for number in range(1_000))))
    assert many.cells[-3:] == ["v19", "ok", "19"]
    assert "1,000 values after commit 2 id" in many.rest
    assert "and 980 more" in many.rest

    def answer(status: Success | Conflicts | Failure) -> Page:
        return page(EnqueueUpdatesResponse(RequestId("r"), "ws", "cs", status))

    assert answer(Success(2, 7)).cells == ["applied updates", "2", "commit", "7"]
    assert answer(Success(2, 7, 5, 1)).cells[4:] == ["position", "5", "unresolved conflicts", "1"]
    assert "request r to ws/cs: applied" in answer(Success(2, 7)).rest
    refused = answer(Conflicts("moved", 3, (Conflict("a", "edited"),)))
    assert (refused.cells, refused.rest) == (["a", "edited"], "request r to ws/cs: refused: moved id conflict ")
    assert answer(Failure("closed", "it is closed")).cells == [
        "code",
        "closed",
        "message",
        "it is closed",
        "commit",
        "",
    ]


def test_values_as_a_data_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = VALUES.to_pandas()
    assert list(frame.columns) == COLUMNS
    assert list(frame.json) == [row[5] for row in ROWS]
    assert frame.number.sum() == 2.0**63 + 2
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match="pip install pandas"):
        VALUES.to_pandas()


def test_values_are_an_ordinary_dictionary() -> None:
    assert Values({"a": ok(1)}) == {"a": ok(1)}
    assert str(Values({"a": ok(1)})) == str({"a": ok(1)})
