"""Positions in the forms that users write, and which of them are readable."""

import time
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebaser_client.log.positions import MAX_SEQUENCE, NamedPosition, check_at, parse_position, parse_time
from rebaser_core.commit import CheckpointRef
from rebaser_core.errors import UnprocessableError
from rebaser_core.history import readable

NOW = datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("90s", NOW - timedelta(seconds=90)),
        ("10m", NOW - timedelta(minutes=10)),
        ("2h", NOW - timedelta(hours=2)),
        ("1.5d", NOW - timedelta(days=1.5)),
        ("2w", NOW - timedelta(weeks=2)),
        ("2026-01-31", datetime(2026, 1, 31, tzinfo=UTC)),
        ("2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31T12:00:00+02:00", datetime(2026, 1, 31, 10, tzinfo=UTC)),
    ],
)
def test_times(text: str, meant: datetime) -> None:
    assert parse_time(text, NOW) == meant
    assert parse_position(f"draft@{text}", NOW) == NamedPosition("draft", meant)


def test_a_time_without_a_zone_is_utc_wherever_the_program_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        assert parse_time("2026-01-31T12:00", NOW) == datetime(2026, 1, 31, 12, tzinfo=UTC)
    time.tzset()


@pytest.mark.parametrize("text", ["", "10", "10 minutes", "-5m", "999999999d", "9999-99-99", "0001-01-01T00:00+23:59"])
def test_no_times(text: str) -> None:
    assert parse_time(text, NOW) is None


def test_a_name_alone_is_now_and_digits_are_a_sequence() -> None:
    assert parse_position("draft", NOW) == NamedPosition("draft")
    assert parse_position("draft@0", NOW) == NamedPosition("draft", 0)
    assert parse_position(f"draft@{MAX_SEQUENCE}", NOW) == NamedPosition("draft", MAX_SEQUENCE)


@pytest.mark.parametrize(
    "text", ["draft@", "draft@-1", "draft@now", f"draft@{MAX_SEQUENCE + 1}", "draft@1@2", "draft@٣"]
)
def test_what_is_no_position_says_how_to_write_one(text: str) -> None:
    with pytest.raises(UnprocessableError, match=r"draft@1234 .* draft@2h") as raised:
        parse_position(text, NOW)
    assert raised.value.code == "invalid_position"


@pytest.mark.parametrize("text", ["", "@12", "a b@12", "draft.x"])
def test_a_position_begins_with_a_name(text: str) -> None:
    with pytest.raises(UnprocessableError) as raised:
        parse_position(text, NOW)
    assert raised.value.code == "invalid_id"


@given(
    st.none() | st.integers(0, MAX_SEQUENCE) | st.datetimes(datetime(1970, 1, 2), timezones=st.just(UTC))  # noqa: DTZ001 - hypothesis wants the bound naive
)
def test_a_position_is_read_as_it_is_written(at: int | datetime | None) -> None:
    position = NamedPosition("draft", at)
    assert parse_position(str(position), NOW) == position


def test_a_time_is_shown_in_utc() -> None:
    east = datetime(2026, 1, 31, 14, 0, tzinfo=timezone(timedelta(hours=2)))
    assert str(NamedPosition("draft", east)) == "draft@2026-01-31T12:00:00Z"


@pytest.mark.parametrize("at", [-1, MAX_SEQUENCE + 1, True, datetime(2026, 1, 1)])  # noqa: DTZ001 - that is the case
def test_positions_of_programs_are_checked(at: int | datetime) -> None:
    with pytest.raises(UnprocessableError) as raised:
        check_at(at)
    assert raised.value.code == "invalid_position"


def test_a_position_is_readable_if_the_tail_of_its_checkpoint_is_whole() -> None:
    """The commits that were appended while the oldest checkpoint was being written name the checkpoint before it."""
    assert readable(None, begins_after=0)
    assert not readable(None, begins_after=5)
    assert not readable(CheckpointRef("a", 4, 1), begins_after=5)
    assert readable(CheckpointRef("a", 5, 1), begins_after=5)
    for parent in (None, CheckpointRef("a", 99, 1)):  # a sequence of another log
        assert readable(parent, begins_after=5, begin=6)
        assert not readable(parent, begins_after=6, begin=6)
