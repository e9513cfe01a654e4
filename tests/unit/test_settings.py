"""Each setting comes from its own environment variable, and an invalid value is refused with one line."""

import re
from dataclasses import fields

import pytest

from rebaser.settings import Settings, load_settings
from rebaser_core.errors import ConfigError
from rebaser_core.limits import COMMIT_LIMITS, DEFAULT_LIMITS, Limits
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import consumers, streams


@pytest.mark.parametrize("name", [field.name for field in fields(Limits)])
def test_every_limit_is_a_variable_of_its_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"REBASER_LIMITS__{name.upper()}", "200")
    limits = load_settings().limits
    assert getattr(limits, name) == 200
    assert {getattr(limits, other.name) == getattr(DEFAULT_LIMITS, other.name) for other in fields(Limits)} == {
        False,
        True,
    }


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("REBASER_LIMITS__MAX_DEPTH", str(COMMIT_LIMITS.max_depth + 1), "max_depth must be a number from 8 to 256"),
        ("REBASER_LIMITS__MAX_DEPTH", "-1", "max_depth must be a number"),
        ("REBASER_LIMITS__MAX_DEPTH", "deep", "max_depth must be a number"),
        ("REBASER_LIMITS__MAX_DEPHT", "9", "there is no limit named max_depht"),
        ("REBASER_LIMITS", "nine", "limits"),
        ("REBASER_ACK_WAIT", "soon", "REBASER_ACK_WAIT"),
        ("REBASER_RETRY_FOR", "inf", r"\(REBASER_RETRY_FOR\): Input should be a finite number"),
        ("REBASER_RETRY_WINDOW", "inf", "finite"),
        ("REBASER_QUIESCENT_PERIOD", "0", r"\(REBASER_QUIESCENT_PERIOD\): Input should be greater than"),
        ("REBASER_HISTORY_FOR", "inf", "finite"),
        ("REBASER_SPARK", "localhost:15002", r"\(REBASER_SPARK\): 'localhost:15002' is neither a Spark master"),
        ("REBASER_INBOX_PREFIX", "_INBOX.>", "'_INBOX.>' is not a valid subject prefix"),
        ("REBASER_REPLY_PREFIX", "$JS.API", r"\(REBASER_REPLY_PREFIX\): '\$JS.API' is not a valid subject prefix"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    variable: str, value: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match=says) as refused:
        load_settings()
    assert "\n" not in refused.value.message


DURATIONS = [name for name, field in Settings.model_fields.items() if "float" in str(field.annotation)]
DURATIONS.remove("trace_ratio")


@pytest.mark.parametrize("value", ["inf", "nan", "-inf", "-1", "1e300"])
@pytest.mark.parametrize("name", DURATIONS)
def test_a_time_that_cannot_be_is_refused_at_the_start(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"REBASER_{name.upper()}", value)
    if name == "trace_slower_than" and value in ("inf", "1e300"):  # no request is slow
        assert load_settings().trace_slower_than == float(value)
        return
    with pytest.raises(ConfigError, match=rf"^setting {name} \(REBASER_{name.upper()}\): Input should be ") as refused:
        load_settings()
    assert "\n" not in refused.value.message


def refusal(name: str, value: float) -> str:
    """Return why the value of a setting is refused; empty if it is not."""
    try:
        load_settings(**{name: value})
    except ConfigError as error:
        return error.message
    return ""


@pytest.mark.parametrize("name", DURATIONS)
def test_nats_and_logs_can_hold_the_longest_time(name: str) -> None:
    found = re.search(r"less than or equal to (\d+)", refusal(name, 10.0**300))
    settings = load_settings(**{name: float(found[1]) if found else 1e300})
    made: list[object] = [*streams(Subjects(""), settings.topology()), settings.retention()]
    made += [consumer for _, consumer in consumers(Subjects(""), settings.topology())]
    numbers = [int(number) for number in re.findall(r"\d+", repr(made))]
    assert max(numbers) < 2**63
    assert max(numbers) > 1000


@pytest.mark.parametrize(
    "spark", ["local", "local[*]", "local[2]", "local[2,3]", "yarn", "spark://a:7077", "sc://a:1/;token=x"]
)
def test_each_kind_of_spark_is_accepted(spark: str) -> None:
    assert load_settings(spark=spark).spark == spark


def test_no_part_of_a_token_for_spark_is_shown() -> None:
    assert load_settings(spark="sc://a:1/;token=ab/cd==;use_ssl=true").spark_shown() == (
        "sc://a:1/;token=***;use_ssl=true"
    )
    with pytest.raises(ConfigError, match="neither a Spark master") as caught:
        load_settings(spark="sc:/a:1/;token=ab/cd==")
    assert "cd" not in caught.value.message


@pytest.mark.parametrize("inbox", ["_INBOX", "_INBOX.clients", "_INBOX.clients.server"])
def test_no_server_has_its_inbox_where_clients_may_have_replies_sent(inbox: str) -> None:
    settings = load_settings(inbox_prefix=inbox, reply_prefix="_INBOX.clients")
    if inbox == "_INBOX":
        settings.check_server()
        assert settings.replies_under() == "_INBOX.clients"
    else:
        with pytest.raises(ConfigError, match="set REBASER_INBOX_PREFIX to a prefix that begins differently"):
            settings.check_server()
    load_settings(inbox_prefix=inbox).check_server()
