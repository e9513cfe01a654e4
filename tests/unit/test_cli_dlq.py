"""The output of `rebaser dlq`."""

import io
import re
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from rebaser.cli.commands.maintenance import dlq
from rebaser.cli.output import console
from rebaser_core.ids import ChangeSetKey

REASON = "nobody reads version 9 of a request: start a newer server, and redrive the dead letter"


def letter(**given: Any) -> Any:
    fields = {
        "dead_at_ms": 1_769_860_800_000,
        "key": ChangeSetKey.of("shop", "draft"),
        "request_id": "01K0V3R9J2ABCDEFGHJKMNPQRS",
        "code": "unsupported_version",
        "attempts": 1,
        "redrive": 0,
        "server": "host-1",
        "reason": REASON,
    }
    return SimpleNamespace(**(fields | given))


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def find(*_: object) -> list[Any]:
        return [letter(), letter(attempts=5, redrive=2, reason="a\nb")]

    def run(_nats: str, _prefix: str, work: Any) -> int:
        with pytest.raises(StopIteration):
            work(None).send(None)
        return 0

    monkeypatch.setattr(dlq.LetterSelection, "find", find)
    monkeypatch.setattr(dlq, "_run", run)


@pytest.mark.usefixtures("listed")
def test_a_list_fits_into_a_terminal_of_80_columns_and_breaks_no_word(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Console(file=io.StringIO(), force_terminal=True, width=80, highlight=False, no_color=True)
    monkeypatch.setattr(console, "out", lambda: terminal)
    monkeypatch.setattr(console, "is_terminal", lambda: True)
    dlq.list_.__wrapped__()  # type: ignore[attr-defined]
    text = re.sub(r"\x1b\[\d*m", "", terminal.file.getvalue())  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= 80
    assert {*REASON.split(), "shop/draft", "01K0V3R9J2ABCDEFGHJKMNPQRS", "2026-01-31", "12:00:00"} <= set(text.split())
    assert "5 attempts" in text
    assert "redriven 2x" in text
    assert r"a\nb" in text


@pytest.mark.usefixtures("listed")
def test_a_pipe_gets_a_line_for_each_dead_letter(capsys: pytest.CaptureFixture[str]) -> None:
    dlq.list_.__wrapped__()  # type: ignore[attr-defined]
    first, second = capsys.readouterr().out.splitlines()
    assert first.split("\t")[1:] == ["shop", "draft", letter().request_id, letter().code, "1", "0", "host-1", REASON]
    assert second.split("\t")[-4:] == ["5", "2", "host-1", r"a\nb"]


@pytest.mark.anyio
async def test_letters_are_selected_by_all_that_is_given() -> None:
    asked: list[tuple[Any, ...]] = []

    async def find(*place: Any, **by: Any) -> AsyncIterator[Any]:
        asked.append((*place, by))
        yield letter()

    selection = dlq.LetterSelection("shop", "draft", "malformed", "r1")
    assert len(await selection.find(SimpleNamespace(find=find))) == 1  # type: ignore[arg-type]
    assert asked == [("shop", "draft", {"code": "malformed", "request_id": "r1"})]
