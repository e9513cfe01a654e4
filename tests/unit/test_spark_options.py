"""The options of the data source: which values they take, and the errors for others."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rebaser_client.spark import registry
from rebaser_client.spark.garbage_tables import reference_partitions
from rebaser_client.spark.options import TABLES, SourceOptions
from rebaser_core.errors import ConfigError


def test_options_have_defaults_and_no_case() -> None:
    options = SourceOptions.read({"WORKSPACE": "shop", "changeset": " main, draft,main ", "Credentials": "/a/b"})
    assert (options.table, options.start, options.partitions, options.fail_on_data_loss) == ("values", 0, 32, True)
    assert [str(key) for key in options.keys() or ()] == ["shop.main", "shop.draft"]
    assert options.credentials == Path("/a/b")
    assert SourceOptions.read({"workspace": "shop"}).keys() is None
    assert SourceOptions.read({"workspace": "shop", "start": "new"}).start is None


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"workspace": ""}, '"workspace" is missing'),
        ({"workspace": "a.b"}, "workspace 'a.b' must be"),
        ({"changeSet": "a,*"}, "change set '.' must be"),
        ({"tabel": "values"}, "there is no option 'tabel': the data source has nats, "),
        ({"table": "edits"}, "'table' must be values, commits, .* or .*, not 'edits'"),
        ({"table": "commits", "at": "7"}, "the table 'commits' has no option 'at', which is for values and "),
        ({"from": "7"}, "the table 'values' has no option 'from', which is for commits"),
        ({"table": "commits", "start": "7", "from": "7"}, "'from' and 'start' have the same meaning"),
        ({"at": "soon"}, r"'at' must be a log sequence \(1234\), an age \(2h\) or a time .*, not 'soon'"),
        ({"start": "-1"}, "'start' must be all, new or a number of at least 0"),
        ({"partitions": "0"}, "'partitions' must be a number of at least 1"),
        ({"messages": "letters"}, "'messages' must be all, commits or queued, not 'letters'"),
        ({"table": "blobs", "at": "2h"}, "the table 'blobs' has no option 'at'"),
        ({"failOnDataLoss": "maybe"}, "'failOnDataLoss' must be true or false"),
    ],
)
def test_what_cannot_be_says_what_can(given: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        SourceOptions.read({"workspace": "shop", **given})


def test_positions_are_sequences_ages_and_times() -> None:
    before = datetime.now(UTC)
    options = SourceOptions.read({"workspace": "shop", "table": "commits", "from": "1h", "to": "2026-01-31T12:00Z"})
    assert isinstance(options.from_, datetime)
    assert options.from_ >= before - timedelta(hours=1)
    assert options.to == datetime(2026, 1, 31, 12, tzinfo=UTC)
    options = SourceOptions.read({"workspace": "shop", "At": " 7 "})
    assert (options.at, options.from_, options.to) == (7, None, None)


def test_each_table_that_options_name_can_be_read() -> None:
    assert TABLES.keys() == registry.TABLES.keys()


def test_secrets_are_not_shown() -> None:
    options = SourceOptions.read({"workspace": "shop", "nats": "nats://joe:s3same@host", "token": "s3same"})
    assert "s3same" not in repr(options)


def test_tables_of_the_whole_installation_need_no_workspace() -> None:
    assert SourceOptions.read({"table": "blobs"}).workspace == ""
    options = SourceOptions.read({"table": "references", "messages": "queued", "start": "7"})
    assert (options.messages, options.start) == ("queued", 7)


@pytest.mark.parametrize(
    ("given", "queued", "first"),
    [({}, True, 0), ({"partitions": "1"}, True, 0), ({"messages": "commits", "start": "40"}, False, 40)],
)
@pytest.mark.parametrize("newest", [0, 7, 100, 1_000])
def test_references_are_read_up_to_the_end_of_the_log_without_a_gap(
    given: dict[str, str], queued: bool, first: int, newest: int
) -> None:
    """Otherwise, garbage collection would take a blob that only a commit in the gap names for unused."""
    options = SourceOptions.read({"table": "references", "partitions": "5", **given})
    planned = reference_partitions(cast("Any", SimpleNamespace(call=lambda _: newest)), options)
    logs = [part for part in planned if not part.queued]
    assert len(planned) - len(logs) == queued
    assert len(planned) <= max(options.partitions, 1 + queued)
    assert (logs[0].after, logs[-1].until) == (first, None)
    assert [part.until for part in logs[:-1]] == [part.after for part in logs[1:]]


def test_all_ways_to_log_in_are_passed_on_and_not_shown() -> None:
    given = {
        "user": "joe",
        "password": "s3same",
        "tlsCa": "/ca",
        "tlsHostname": "nats",
        "tlsFirst": "True",
        "tokenFile": "/token",
        "nkey": "/seed",
        "domain": "hub",
    }
    options = SourceOptions.read({"workspace": "shop", **given})
    assert "s3same" not in repr(options)
    assert {name: value for name, value in options.access().items() if value is not None} == {
        "user": "joe",
        "password": "s3same",
        "tls_ca": Path("/ca"),
        "tls_hostname": "nats",
        "tls_first": True,
        "token_file": Path("/token"),
        "nkey": Path("/seed"),
        "domain": "hub",
    }
