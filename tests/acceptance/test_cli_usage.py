"""The command line from outside: help, exit codes, and one line on stderr for any wrong usage."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import COMMANDS, ROOT, command, environment

NAMES = (
    "dev",
    "serve",
    "enqueue",
    "recompute",
    "get",
    "list",
    "tail",
    "status",
    "console",
    "ping",
    "functions",
    "dlq",
    "doctor",
    "demo",
    "bench",
)


def rebaser(*arguments: str, stdin: bytes = b"", **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command, whose modules are loaded already."""
    with COMMANDS.start(arguments, environment() | env, stdin) as running:
        running.answers.settimeout(240)
        return running.result()


def complaint(*arguments: str, stdin: bytes = b"", code: int = 2, **env: str) -> str:
    done = rebaser(*arguments, stdin=stdin, **env)
    assert done.returncode == code, done
    assert done.stdout == ""
    assert done.stderr.startswith("rebaser: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


@pytest.mark.parametrize("arguments", [("get", "a.b", "c"), ("enqueue", "--help"), ("--version",), ("functions",)])
def test_a_process_of_its_own_does_the_same(arguments: tuple[str, ...]) -> None:
    done = subprocess.run(command(*arguments), cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    same = rebaser(*arguments)
    assert (done.returncode, done.stdout, done.stderr) == (same.returncode, same.stdout, same.stderr)


def test_help_names_every_command() -> None:
    done = rebaser("--help")
    assert done.returncode == 0
    for name in NAMES:
        assert f"\n  {name} " in done.stdout
    assert rebaser().stdout == done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_help_with_examples(name: str) -> None:
    done = rebaser(name, "--help")
    assert done.returncode == 0
    assert "Examples:" in done.stdout
    assert f"    rebaser {name}" in done.stdout
    assert "\x1b" not in done.stdout


def test_version() -> None:
    done = rebaser("--version")
    assert (done.returncode, done.stdout) == (0, "rebaser 0.1.0\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("fly",), "fly"),
        (("get",), "WS"),
        (("get", "a.b", "c"), "'a.b'"),
        (("get", "w", "c", "--json", "--updates"), "choose one"),
        (("enqueue", "w", "c"), "no edits"),
        (("recompute", "w", "a.b"), "'a.b'"),
        (("recompute", "w", "c", "--function", ""), "--function"),
        (("tail", "a.b"), "'a.b'"),
        (("tail", "--dlq", "--requests"), "choose one"),
        (("tail", "--all", "--since", "1h"), "choose one"),
        (("tail", "--since", "yesterday"), "10m"),
        (("tail", "--from-seq", "0"), "--from-seq"),
        (("enqueue", "w", "c", "--set", "name=text"), """--set name='"text"'"""),
        (("enqueue", "w", "c", "--set", "a=1", "--remove", "a"), "edited twice"),
        (("enqueue", "w", "c", "--derive", "a=1 +"), "formula of 'a'"),
        (("enqueue", "w", "c", "--set", "a=1", "--wait", "long"), "'long'"),
        (("enqueue", "w", "c", "--set", "a=1", "--timeout", "x"), "--timeout"),
        (("enqueue", "w", "c", "--set", "a=1", "--content-type", "xml"), "cbor or json"),
        (("bench", "--in-flight", "0"), "--in-flight"),
        (("dlq",), "command"),
        (("dlq", "list", "a.b"), "'a.b'"),
        (("dlq", "drop"), "or give --all"),
        (("dlq", "redrive", "--all", "--code", "x"), "--all cannot be combined"),
        (("doctor", "shop"), "WS CS"),
        (("doctor", "w"), "WS CS"),
        (("doctor", "w", "a.b"), "'a.b'"),
        (("doctor", "w", "c", "--yes"), "--repair"),
        (("ping", "--nonsense"), "--nonsense"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(arguments: tuple[str, ...], words: str) -> None:
    assert words in complaint(*arguments)


def test_options_come_from_the_environment_too() -> None:
    assert "REBASER_ENQUEUE_WAIT" in rebaser("enqueue", "--help").stdout
    assert "'long'" in complaint("enqueue", "w", "c", "--set", "a=1", REBASER_ENQUEUE_WAIT="long")


def test_a_variable_that_nothing_reads_is_warned_of_when_a_command_runs_but_not_in_its_help() -> None:
    line = "warning: REBASER_SPRAK is not a setting and is ignored; did you mean REBASER_SPARK?"
    assert rebaser("get", REBASER_SPRAK="1").stderr.splitlines()[0] == line
    for arguments in (("--help",), ("--version",), ("get", "--help"), ("dlq", "list", "-h")):
        done = rebaser(*arguments, REBASER_SPRAK="1")
        assert (done.returncode, done.stderr) == (0, "")
    assert rebaser(_REBASER_COMPLETE="source_bash", REBASER_SPRAK="1").stderr == ""


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert "nowhere.jsonl" in complaint("enqueue", "w", "c", "--file", str(tmp_path / "nowhere.jsonl"), code=1)
    assert str(tmp_path) in complaint("enqueue", "w", "c", "--file", str(tmp_path), code=1)


def test_a_bad_line_of_a_file_is_found_before_anything_is_sent(tmp_path: Path) -> None:
    """No server is needed: the address that the command gets answers nothing."""
    file = tmp_path / "updates.jsonl"
    good = '{"op": "set", "id": "a", "value": 1}\n'
    file.write_text(good * 3000 + '{"op": "set", "id": "a"}\n' + good)
    line = complaint("enqueue", "w", "c", "--file", str(file), "--nats", "nats://127.0.0.1:1", code=1)
    assert "line 3001: set 'a' has no value" in line
    assert "nothing was sent" in line


def test_a_server_that_does_not_answer_is_one_line_that_says_what_to_do() -> None:
    line = complaint("get", "w", "c", "--nats", "nats://127.0.0.1:1", code=1)
    assert "127.0.0.1:1" in line
    assert "rebaser dev" in line
    assert "nats://127.0.0.1:1" in complaint("ping", REBASER_NATS_URL="nats://127.0.0.1:1", code=1)


def test_functions_lists_what_formulas_can_call() -> None:
    done = rebaser("functions")
    assert done.returncode == 0
    names = {line.split("\t")[0] for line in done.stdout.splitlines()}
    assert {"sum", "merge", "cel"} <= names


def test_completion_is_offered_for_the_shell() -> None:
    # As a start-up file of a shell does. `--show-completion` looks for the shell in the process tree, and CI has none.
    done = rebaser(_REBASER_COMPLETE="source_bash")
    assert done.returncode == 0
    assert "complete_bash" in done.stdout


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(  # noqa: PLW1510 - the exit code is what is looked at
            command("functions"), cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, timeout=240
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


def test_options_that_do_not_go_together() -> None:
    assert "--wait derived" in complaint("enqueue", "a", "b", "--set", "a=1", "--fail-on-error")
    assert "several requests" in complaint("enqueue", "a", "b", "--file", "-", "--request-id", "x")
    assert "1 to 64 characters" in complaint("enqueue", "a", "b", "--set", "a=1", "--request-id", "x y")
    assert "no formula" in complaint("enqueue", "a", "b", "--set", "a=1", "--input", "p=a")


def test_a_file_is_refused_what_an_option_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "updates.jsonl"
    file.write_text('{"op": "derive", "id": "t", "function": "round", "inputs": {"v": "a"}, "params": {"digit": 2}}\n')
    told = complaint("enqueue", "a", "b", "--file", str(file), code=1)
    assert "line 1: 't': round has no parameter 'digit'; did you mean digits?" in told
    assert "--unchecked" not in told
    file.write_text('{"op": "derive", "id": "t", "function": "cel", "inputs": {"v": "a"}, "params": {"expr": "v *"}}\n')
    told = complaint("enqueue", "a", "b", "--file", str(file), code=1)
    assert "line 1: 't': line 1, column 4: Syntax error" in told
    assert "--unchecked" in told
    assert "no connection" in complaint(
        "enqueue", "a", "b", "--file", str(file), "--unchecked", "--nats", "nats://127.0.0.1:9", code=1
    )


def test_functions_are_listed_with_what_they_take() -> None:
    found = {one["name"]: one for one in map(json.loads, rebaser("functions", "--json").stdout.splitlines())}
    assert (found["round"]["inputs"], found["round"]["params"]) == (None, ["digits"])
    assert (found["if"]["inputs"], found["if"]["params"]) == (["condition", "then", "else"], ["then", "else"])
    assert (found["sum"]["params"], found["object"]["params"]) == ([], None)


AHEAD = """
import sys
from rebaser.cli.app import run
from rebaser.embedded.spark import Jvm

def start_in_background(jvm):
    print([name for name in ("rebaser.server", "nats", "pandas", "pyspark") if name in sys.modules])
    raise SystemExit

Jvm.start_in_background = start_in_background
run(sys.argv[1:])
"""


@pytest.mark.parametrize("words", ["demo", "dev --port 0", "serve"])
def test_spark_starts_before_what_takes_seconds_to_load(words: str, tmp_path: Path) -> None:
    program = [sys.executable, "-c", AHEAD, *words.split()]
    done = subprocess.run(program, env=environment(), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")
