"""Sets thresholds from the environment, so that tests can start processes that take rarely used code paths.

Thresholds choose between code paths that give the same results. They are not settings, because no installation would
benefit from changing them.

`REBASER_TEST_THRESHOLDS` is `lowest`, `highest`, `drawn 17` (17 is a seed), or a JSON object of fields of
`rebaser_core.thresholds.Thresholds`; the other fields keep their defaults:

    REBASER_TEST_THRESHOLDS=lowest rebaser dev
    REBASER_TEST_THRESHOLDS='{"packet_bytes": 1000, "full_plan_min_values": 0}' rebaser serve …

The variable is read once, when `rebaser` is imported: by a server, and by the Python workers of its embedded Spark,
which inherit the variable. The workers of an external Spark do not. Tests within one process use
`rebaser_core.thresholds.forced` instead.
"""

import json
import os
import random
from dataclasses import fields
from typing import Final

from rebaser_core import thresholds
from rebaser_core.errors import ConfigError
from rebaser_core.thresholds import Thresholds

VARIABLE: Final = "REBASER_TEST_THRESHOLDS"


def parse(text: str) -> Thresholds:
    """Return the thresholds that `text`, the value of the variable, describes. Raise `ConfigError` if it is invalid."""
    word, _, seed = text.partition(" ")
    if text in ("lowest", "highest"):
        return Thresholds.lowest() if text == "lowest" else Thresholds.highest()
    if word == "drawn" and seed:
        return Thresholds.drawn(random.Random(seed))  # noqa: S311 - for tests only
    try:
        values = json.loads(text)
    except ValueError:
        raise ConfigError(f"{VARIABLE} must be lowest, highest, drawn SEED or JSON, not {text[:200]}") from None
    if type(values) is not dict:
        raise ConfigError(f"{VARIABLE} must be a JSON object, not {text[:200]}")
    known = {field.name: field.metadata for field in fields(Thresholds)}
    for name, value in values.items():
        if name not in known:
            raise ConfigError(f"{VARIABLE}: unknown threshold {name[:200]}; the thresholds are {', '.join(known)}")
        low, high = known[name]["lowest"], known[name]["highest"]
        if type(value) not in {int, type(low)} or not low <= value <= high:
            raise ConfigError(f"{VARIABLE}: {name} must be a number from {low} to {high}, not {str(value)[:200]}")
    return Thresholds(**values)


def apply_from_environment() -> None:
    """Set the thresholds of this process from the environment, if the variable is set."""
    if text := os.environ.get(VARIABLE):
        thresholds.now = parse(text)
