"""Subjects are built and parsed in one module, with and without a prefix."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rebaser_core.errors import ConfigError, UnprocessableError
from rebaser_core.ids import RESERVED, ChangeSetKey
from rebaser_core.streams.subjects import Subjects
from tests.wire.strategies import tokens

KEY = ChangeSetKey("w", "c")
PLAIN, PREFIXED = Subjects(), Subjects("blue")


def test_names_without_a_prefix() -> None:
    assert PLAIN.requests(KEY) == "rebaser.requests.w.c"
    assert PLAIN.task(KEY) == "rebaser.tasks.w.c.process"
    assert PLAIN.commits(KEY) == "rebaser.commits.w.c"
    assert PLAIN.dlq(KEY) == "rebaser.dlq.w.c"
    assert PLAIN.ping == "rebaser.servers.ping"
    assert (PLAIN.requests_stream, PLAIN.tasks_stream) == ("REBASER_REQUESTS", "REBASER_TASKS")
    assert (PLAIN.commits_stream, PLAIN.dlq_stream) == ("REBASER_COMMITS", "REBASER_DLQ")
    assert PLAIN.blobs_bucket == "REBASER_BLOBS"


def test_a_prefix_goes_in_front_of_every_name() -> None:
    assert PREFIXED.requests(KEY) == "blue.rebaser.requests.w.c"
    assert PREFIXED.task(KEY) == "blue.rebaser.tasks.w.c.process"
    assert PREFIXED.ping == "blue.rebaser.servers.ping"
    assert PREFIXED.commits_stream == "blue_REBASER_COMMITS"
    assert PREFIXED.blobs_bucket == "blue_REBASER_BLOBS"


@settings(deadline=None)
@given(st.just("") | tokens, tokens, tokens)
def test_what_is_built_is_parsed_back(prefix: str, workspace: str, change_set: str) -> None:
    assume(workspace != RESERVED)
    subjects, key = Subjects(prefix), ChangeSetKey(workspace, change_set)
    built = {
        "requests": subjects.requests(key),
        "tasks": subjects.task(key),
        "commits": subjects.commits(key),
        "dlq": subjects.dlq(key),
    }
    assert {kind: subjects.parse(subject) for kind, subject in built.items()} == {kind: (kind, key) for kind in built}
    for subject in built.values():
        with pytest.raises(UnprocessableError):
            Subjects(f"{prefix}x"[-64:] if prefix else "other").parse(subject)


def test_the_reserved_workspace_has_logs_and_dead_letters_and_no_requests() -> None:
    key = ChangeSetKey(RESERVED, "gc")
    assert PREFIXED.parse(PREFIXED.commits(key)) == ("commits", key)
    assert PREFIXED.parse(PREFIXED.dlq(key)) == ("dlq", key)
    for subject in (PREFIXED.requests(key), PREFIXED.task(key)):
        with pytest.raises(UnprocessableError):
            PREFIXED.parse(subject)


@pytest.mark.parametrize(
    "subject",
    [
        "",
        "rebaser",
        "rebaser.",
        "rebaser.requests",
        "rebaser.requests.w",
        "rebaser.requests.w.c.d",
        "rebaser.requests.w.c.process",
        "rebaser.requests.w.",
        "rebaser.requests..c",
        "rebaser.requests.w.*",
        "rebaser.requests.w.>",
        "rebaser.tasks.w.c",
        "rebaser.tasks.w.c.other",
        "rebaser.servers.ping",
        "rebaser.other.w.c",
        "rebaserx.requests.w.c",
        "x.rebaser.requests.w.c",
        "rebaser.rebaser.requests.w.c",
        "blue.rebaser.requests.w.c",
        "$JS.API.INFO",
        "rebaser.requests.w.c\n",
    ],
)
def test_what_this_installation_would_not_have_built_is_refused(subject: str) -> None:
    with pytest.raises(UnprocessableError):
        PLAIN.parse(subject)


@settings(deadline=None)
@given(st.text() | st.text("rebas.wcqutks*>").map("rebaser.requests.".__add__))
def test_any_text_is_a_known_subject_or_refused(subject: str) -> None:
    try:
        kind, key = PLAIN.parse(subject)
    except UnprocessableError:
        return
    assert subject == {"requests": PLAIN.requests, "tasks": PLAIN.task, "commits": PLAIN.commits, "dlq": PLAIN.dlq}[
        kind
    ](key)


@pytest.mark.parametrize("prefix", ["a.b", "*", "a b", "x" * 65, "ä"])
def test_a_prefix_that_is_no_token_is_a_configuration_error(prefix: str) -> None:
    with pytest.raises(ConfigError):
        Subjects(prefix)
