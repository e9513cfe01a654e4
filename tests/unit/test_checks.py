"""What is said against a definition before it is sent."""

import pytest

from rebaser.cli.jsonl import UpdateLines
from rebaser.dvu.checks import check
from rebaser_core.errors import UnprocessableError
from rebaser_core.updates import Derive, Set, Unset


@pytest.mark.parametrize(
    ("derive", "message"),
    [
        (Derive("t", "round", {"v": "a"}, {"digit": 1}), "'t': round has no parameter 'digit', did you mean digits?"),
        (Derive("t", "sum", {"v": "a"}, {"zzz": 1}), "'t': sum has no parameter 'zzz', nor any other"),
        (Derive("t", "if", {"cond": "a"}), "'t': if has no input 'cond', did you mean condition?"),
        (Derive("t", "cel", {"a": "a"}), "'t': params need expr, a formula"),
        (Derive("t", "cel", {"a": "a"}, {"expr": "a + b"}), "'t': the formula names 'b', which is not an input"),
        (Derive("t", "cel", {"a/b": "a"}, {"expr": "1"}), "'t': input name 'a/b' cannot be used in a formula"),
        (Derive("t", "cel", {"a": "a"}, {"expr": "a *"}), "'t': line 1, column 4: Syntax error"),
    ],
)
def test_a_definition_that_can_only_fail_is_refused(derive: Derive, message: str) -> None:
    with pytest.raises(UnprocessableError) as caught:
        check(derive)
    assert caught.value.message.startswith(message)


def test_what_may_work_passes() -> None:
    for update in (
        Set("t", 1),
        Unset("t"),
        Derive("t", "round", {"v": "a"}, {"digits": 1}),
        Derive("t", "object", {"v": "a"}, {"anything": 1}),
        Derive("t", "company.tax", {"v": "a"}, {"anything": 1}),
        Derive("t", "cel", {"a": "a"}, {"expr": "a + 1"}),
    ):
        check(update)


def test_a_line_of_a_file_is_checked_and_named() -> None:
    good = b'{"op": "derive", "id": "a", "function": "cel", "params": {"expr": "1"}}\n'
    bad = b'{"op": "derive", "id": "t", "function": "cel", "params": {"expr": "1 +"}}\n'
    lines = UpdateLines(check=check).feed(good + bad)
    assert next(lines).update.id == "a"
    with pytest.raises(UnprocessableError, match=r"^line 2: 't': line 1, column 4"):
        next(lines)
