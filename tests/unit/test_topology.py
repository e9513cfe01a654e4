"""Tests what the durability setting means for a stream."""

from typing import Any

import pytest

from rebaser.settings import load_settings
from rebaser_core.errors import ConfigError
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import (
    NANOS,
    SEQUENCE_GAP,
    TopologyOptions,
    first_sequence_after,
    streams,
    tasks_consumer,
)


@pytest.mark.parametrize(
    ("options", "alone", "clustered"),
    [
        ({}, (None, None), (None, None)),
        ({"replicas": 3}, (None, 3), (None, 3)),
        ({"durability": "memory"}, ("memory", 1), ("memory", 1)),
        ({"durability": "fast"}, ("file", 1), ("file", 1)),
        ({"durability": "fast", "replicas": 2}, ("file", 2), ("file", 2)),
        ({"durability": "safe"}, ("file", 1), ("file", 3)),
        ({"durability": "safe", "replicas": 5}, ("file", 5), ("file", 5)),
    ],
)
def test_each_word_is_storage_and_copies_of_every_stream(
    options: dict[str, Any], alone: tuple[object, object], clustered: tuple[object, object]
) -> None:
    for is_cluster, wanted in ((False, alone), (True, clustered)):
        for stream in streams(Subjects(), TopologyOptions(**options), clustered=is_cluster):
            assert (stream.get("storage"), stream.get("num_replicas")) == wanted


def test_safe_with_too_few_copies_is_refused_in_a_cluster() -> None:
    with pytest.raises(ConfigError, match="needs 3 copies"):
        streams(Subjects(), TopologyOptions(durability="safe", replicas=2), clustered=True)


def test_every_limit_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "requests_max_msgs": ("REBASER_REQUESTS", "max_msgs"),
        "requests_max_bytes": ("REBASER_REQUESTS", "max_bytes"),
        "requests_max_msg_size": ("REBASER_REQUESTS", "max_msg_size"),
        "max_requests_per_change_set": ("REBASER_REQUESTS", "max_msgs_per_subject"),
        "commits_max_bytes": ("REBASER_COMMITS", "max_bytes"),
        "dlq_max_bytes": ("REBASER_DLQ", "max_bytes"),
        "blobs_max_bytes": ("OBJ_REBASER_BLOBS", "max_bytes"),
    }
    for number, setting in enumerate(given, 1):
        monkeypatch.setenv(f"REBASER_{setting.upper()}", str(number * 1000))
    monkeypatch.setenv("REBASER_DUPLICATE_WINDOW", "7")
    monkeypatch.setenv("REBASER_ACK_SAMPLE", "25")
    monkeypatch.setenv("REBASER_DLQ_MAX_AGE", "3600")
    options = load_settings().topology()
    found = {stream["name"]: stream for stream in streams(Subjects(), options)}
    for number, (stream, field) in enumerate(given.values(), 1):
        assert found[stream][field] == number * 1000
        assert found[stream]["discard"] == "new"
    assert {stream["duplicate_window"] for stream in found.values()} == {7_000_000_000}
    assert found["REBASER_DLQ"]["max_age"] == 3600 * NANOS
    assert tasks_consumer(Subjects(), options)["sample_freq"] == "25"


def test_what_nobody_chose_is_not_named_and_so_left_as_it_is() -> None:
    limits = {"max_bytes", "max_msgs", "max_msg_size", "duplicate_window", "storage", "num_replicas"}
    for stream in streams(Subjects(), load_settings().topology()):
        assert not limits & stream.keys()
        assert stream["name"] == "REBASER_DLQ" or stream["max_age"] == 0, "what is acknowledged is not forgotten"
    assert "max_age" not in next(one for one in streams(Subjects(), TopologyOptions()) if one["name"] == "REBASER_DLQ")
    assert "sample_freq" not in tasks_consumer(Subjects(), TopologyOptions())


@pytest.mark.parametrize("last", [0, 1, 999_999, 1_000_000, 5_500_000])
def test_a_stream_that_replaces_another_begins_far_behind_its_end(last: int) -> None:
    assert first_sequence_after(last) - last > SEQUENCE_GAP
