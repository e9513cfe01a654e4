"""Command lines that messages suggest."""

import shlex

import pytest

from rebaser_core.shell import command


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (command("get", "shop", "draft"), "rebaser get shop draft"),
        (command("diff", "shop", "draft", options=("--derived",)), "rebaser diff shop draft --derived"),
        (command("get", "-shop", "draft"), "rebaser get -- -shop draft"),
        (command("branch", "shop", "-x", options=("--from", "-y")), "rebaser branch --from -y -- shop -x"),
        (command("get", "shop", "draft@2h", "a b"), "rebaser get shop draft@2h 'a b'"),
    ],
)
def test_a_command_is_quoted_and_ends_its_options_before_a_name_with_a_dash(line: str, wanted: str) -> None:
    assert line == wanted


@pytest.mark.parametrize("id_", ["it's", "$(reboot)", "`reboot`", "a;b", "-", "--all", "", "\n", "emoji 🫖"])
def test_a_shell_gives_back_the_names(id_: str) -> None:
    words = shlex.split(command("resolve", "shop", "draft", id_, options=("--take", "main")))
    assert words.count(id_) == 1
    assert ("--" in words) == id_.startswith("-")
