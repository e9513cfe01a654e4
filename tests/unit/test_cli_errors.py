"""Expected failures become one line and an exit code; bugs stay exceptions."""

import pytest
import typer

from rebaser.cli.errors import CommandFailed, explain, is_broken_pipe
from rebaser.cli.sending.sender import EditSender, WaitUntil
from rebaser_client.errors import RequestRejected
from rebaser_core.errors import ConfigError, TransientError
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.messages import EnqueueUpdatesResponse, Failure


@pytest.mark.parametrize(
    ("error", "line", "code"),
    [
        (CommandFailed("no"), "no", 1),
        (ConfigError("Java 17\nis missing"), "Java 17 is missing", 1),
        (typer.BadParameter("wrong", param_hint="--set"), "Invalid value for --set: wrong; see: rebaser --help", 2),
        (FileNotFoundError(2, "No such file", "f.jsonl"), "f.jsonl: No such file", 1),
        (OSError(28, "No space left on device"), "cannot write the output: No space left on device", 1),
        (BaseExceptionGroup("", [BaseExceptionGroup("", [ConfigError("deep")])]), "deep", 1),
    ],
)
def test_expected_failures(error: BaseException, line: str, code: int) -> None:
    assert explain(error) == (line, code)


def test_a_wrong_choice_is_told_without_the_words_of_the_validator() -> None:
    explained = explain(typer.BadParameter("Value error, 'x' is not one of 'a', 'b'", param_hint="--wait"))
    assert explained == ("Invalid value for --wait: 'x' is not one of 'a', 'b'; see: rebaser --help", 2)


def test_a_missing_connection_says_how_to_get_one() -> None:
    explained = explain(TransientError("nats://x does not answer", code="not_connected"))
    assert explained is not None
    assert "rebaser dev" in explained[0]
    assert "REBASER_NATS_URL" in explained[0]


def test_a_rejected_request_says_what_to_do() -> None:
    failure = Failure("closed", "this change set is closed (applied)", 7)
    error = RequestRejected(RequestId("r"), EnqueueUpdatesResponse(RequestId("r"), "shop", "fix", failure))
    sender = EditSender(ChangeSetKey("shop", "fix"), WaitUntil.APPLIED, timeout=1)
    sender.error = error
    line = "request r was rejected: this change set is closed (applied); `rebaser reopen shop fix` opens it again"
    assert explain(error) == (line, 1)
    assert sender.error_line() == line


def test_a_bug_is_not_explained_away_even_beside_an_expected_failure() -> None:
    assert explain(KeyError("x")) is None
    assert explain(BaseExceptionGroup("", [ConfigError("known"), KeyError("x")])) is None


def test_a_reader_that_went_away_is_recognised() -> None:
    assert is_broken_pipe(BaseExceptionGroup("", [BrokenPipeError()]))
    assert not is_broken_pipe(ConfigError("x"))
