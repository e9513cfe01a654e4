"""Tests which environment variables are reported because no setting reads them."""

import pytest
from typer.main import get_command

from rebaser.cli import env_vars
from rebaser.cli.app import app
from rebaser.settings import Settings


def unknown_variables(names: list[str]) -> list[str]:
    return env_vars.unknown_variables(names, get_command(app))


def test_every_setting_and_option_is_known() -> None:
    names = [f"REBASER_{name.upper()}" for name in Settings.model_fields]
    more = ["REBASER_ENQUEUE_WAIT", "REBASER_DEV_PORT", "REBASER_DLQ_LIST_JSON", "REBASER_LIMITS__MAX_DEPTH", "HOME"]
    assert unknown_variables([*names, *more, "_REBASER_COMPLETE", "REBASER_TEST_THRESHOLDS"]) == []


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("REBASER_SPRAK", "REBASER_SPRAK is not a setting and is ignored; did you mean REBASER_SPARK?"),
        ("REBASER_NATS", "REBASER_NATS is not a setting and is ignored; did you mean REBASER_NATS_URL?"),
        ("REBASER_XYZZY", "REBASER_XYZZY is not a setting and is ignored"),
        ("REBASER_ENQUEUE_SET", "REBASER_ENQUEUE_SET is not a setting and is ignored"),
    ],
)
def test_others_are_told(name: str, line: str) -> None:
    [told] = unknown_variables([name])
    assert told.startswith(line)


def test_what_kubernetes_sets_for_a_service_named_rebaser_is_none_of_it() -> None:
    names = ["SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT", "PORT_80_TCP_ADDR", "NATS_SERVICE_HOST"]
    assert unknown_variables([f"REBASER_{name}" for name in names]) == []
