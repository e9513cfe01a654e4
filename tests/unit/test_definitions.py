"""Tests which definitions are refused before they are sent."""

from functools import partial

import pytest

from rebaser.cli.sending.jsonl import JsonLinesParser
from rebaser.dvu.functions import builtins
from rebaser_core.commit import Kind
from rebaser_core.definitions import BUILTINS, check_definition, check_definitions
from rebaser_core.errors import UnprocessableError
from rebaser_core.messages import decode_delta, decode_updates_blob, encode_delta, encode_updates_blob
from rebaser_core.updates import Derive, Match, Set, Unset

check = partial(check_definition, formulas=True)


@pytest.mark.parametrize(
    ("derive", "message"),
    [
        (Derive("t", "round", {"v": "a"}, {"digit": 1}), "'t': round has no parameter 'digit'; did you mean digits?"),
        (Derive("t", "sum", {"v": "a"}, {"zzz": 1}), "'t': sum has no parameter 'zzz'; it has none"),
        (Derive("t", "if", {"cond": "a"}), "'t': if has no input 'cond'; did you mean condition?"),
        (Derive("t", "by_id", {"a": ("a", "b")}), "'t': by_id needs a pattern among its inputs"),
        (Derive("t", "cel", {"a": "a"}), "'t': the parameter 'expr' must be the text of a formula"),
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
        Derive("t", "by_id", {"a": ("a", Match("b/*"))}),
        Derive("t", "company.tax", {"v": "a"}, {"anything": 1}),
        Derive("t", "cel", {"a": "a"}, {"expr": "a + 1"}),
    ):
        check(update)


def test_what_functions_take_is_known_of_all_that_are_built_in_and_of_no_other() -> None:
    assert BUILTINS.keys() == builtins().keys()


def test_the_first_definition_that_is_wrong_is_named_by_position_and_id() -> None:
    some = [Set("a", 1), Derive("b", "company.tax", {}, {"digit": 1}), Derive("t", "round", {"v": "a"}, {"digit": 1})]
    with pytest.raises(UnprocessableError) as caught:
        check_definitions([*some, Derive("u", "sum", {}, {"digit": 1})])  # type: ignore[list-item]
    assert caught.value.message == "update 2 of 't': round has no parameter 'digit'; did you mean digits?"
    assert caught.value.code == "invalid_definition"
    check_definitions(some[:2])  # type: ignore[arg-type]


def test_a_formula_is_read_if_that_is_wanted() -> None:
    wrong = [Set("a", 1), Derive("t", "cel", {"a": "a"}, {"expr": "a *"})]
    check_definitions(wrong)  # type: ignore[arg-type]
    with pytest.raises(UnprocessableError, match=r"^update 1 of 't': line 1, column 4: Syntax error") as caught:
        check_definitions(wrong, formulas=True)  # type: ignore[arg-type]
    assert caught.value.code == "invalid_formula"
    with pytest.raises(UnprocessableError, match=r"^'t': cel has no parameter 'exp'; did you mean expr\?"):
        check_definition(Derive("t", "cel", {"a": "a"}, {"exp": "a"}))


def test_a_log_that_holds_a_wrong_definition_is_read_and_its_values_stay() -> None:
    old = (Derive("t", "round", {"v": "a"}, {"digit": 1}),)
    assert decode_delta(Kind.REBASE, encode_delta(old)) == old
    assert builtins()["round"].call([2.25], old[0].params) == 2.0  # type: ignore[misc] # it has one


def test_a_line_of_a_file_is_checked_and_named() -> None:
    good = b'{"op": "derive", "id": "a", "function": "cel", "params": {"expr": "1"}}\n'
    bad = b'{"op": "derive", "id": "t", "function": "cel", "params": {"expr": "1 +"}}\n'
    lines = JsonLinesParser(check=check).feed(good + bad)
    assert next(lines).update.id == "a"
    with pytest.raises(UnprocessableError, match=r"^line 2: 't': line 1, column 4"):
        next(lines)


def test_an_update_of_a_blob_is_named_by_position_and_id() -> None:
    blob = encode_updates_blob((Set("a", 1), Derive("t", "sum", {"v": "x" * 600})))
    with pytest.raises(UnprocessableError, match=r"^update 1 of 't': input id 'x+'\.\.\. is longer than 512"):
        decode_updates_blob(blob)
