"""Thresholds from the environment, for tests that start processes: another way to the same results.

No setting: nobody is better off with it. `REBASER_TEST_THRESHOLDS` says `lowest`, `highest`, `drawn 17` (17 is a seed),
or gives fields of `rebaser_core.thresholds.Thresholds` as JSON, where the rest is as it is by default:

    REBASER_TEST_THRESHOLDS=lowest rebaser dev
    REBASER_TEST_THRESHOLDS='{"packet_bytes": 1000, "whole": 0, "share": 1099511627776}' rebaser serve …

It is read once, when `rebaser` is imported: by a server, and by the Python workers of the Spark that it starts, which
inherit it. Spark elsewhere is not told. A test that runs in one process uses `rebaser_core.thresholds.forced`.
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
    """What `REBASER_TEST_THRESHOLDS` says. Raises `ConfigError`."""
    word, _, seed = text.partition(" ")
    if text in ("lowest", "highest"):
        return Thresholds.lowest() if text == "lowest" else Thresholds.highest()
    if word == "drawn" and seed:
        return Thresholds.drawn(random.Random(seed))  # noqa: S311 - a test's
    try:
        given = json.loads(text)
    except ValueError:
        raise ConfigError(f"{VARIABLE} is neither lowest, highest, drawn SEED nor JSON: {text[:200]}") from None
    if type(given) is not dict:
        raise ConfigError(f"{VARIABLE} is no JSON object: {text[:200]}")
    known = {one.name: one.metadata for one in fields(Thresholds)}
    for name, value in given.items():
        if name not in known:
            raise ConfigError(f"{VARIABLE}: there is no threshold {name[:200]}; there are {', '.join(known)}")
        low, high = known[name]["lowest"], known[name]["highest"]
        if type(value) not in {int, type(low)} or not low <= value <= high:
            raise ConfigError(f"{VARIABLE}: {name} is a number from {low} to {high}, not {str(value)[:200]}")
    return Thresholds(**given)


def apply_from_environment() -> None:
    """Begin with what the environment says, if it says anything."""
    if text := os.environ.get(VARIABLE):
        thresholds.now = parse(text)
