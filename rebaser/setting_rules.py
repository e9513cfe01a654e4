"""Checks the values of settings that are more than numbers and choices, and hides secrets in them.

Invariant: the message of an error contains no secret.
"""

import re

from rebaser.ops.address import parse_address
from rebaser_core.limits import COMMIT_LIMITS

LOWEST_LIMIT = 8
INBOX = re.compile(r"[\w-]+(\.[\w-]+)*", re.ASCII)
SPARK = re.compile(r"local(-cluster)?(\[[^\]]+\])?|yarn|(sc|spark|k8s)://.+")


def without_token(spark: str) -> str:
    """Return the URL of a Spark Connect server without its token."""
    return re.sub(r"\btoken=[^;]*", "token=***", spark, flags=re.IGNORECASE)


def check_spark(spark: str) -> str:
    """Return `spark`. Raise `ValueError` if it is no address of Spark."""
    if not SPARK.fullmatch(spark):
        shown = without_token(spark)
        raise ValueError(f"{shown!r} is neither a Spark master nor an sc:// URL; use local[*] or sc://host:port")
    return spark


def check_http(address: str | None) -> str | None:
    """Return `address`, or None if it is empty. Raise `ValueError` if it is no address of an HTTP server."""
    if address:
        parse_address(address)
    return address or None


def check_inbox(prefix: str | None) -> str | None:
    """Return `prefix`. Raise `ValueError` if it is no prefix of subjects."""
    if prefix is not None and not INBOX.fullmatch(prefix):
        raise ValueError(f"{prefix!r} is not a valid subject prefix; use letters, digits, _ and -, joined by dots")
    return prefix


def check_limits(limits: object) -> object:
    """Return `limits`. Raise `ValueError` for an unknown limit, and for one that is too low or too high."""
    for name, value in limits.items() if isinstance(limits, dict) else ():
        highest = getattr(COMMIT_LIMITS, name, None)
        if highest is None:
            raise ValueError(f"there is no limit named {name}; the reference page of settings lists all limits")
        if not (str(value).isdecimal() and LOWEST_LIMIT <= int(value) <= highest):
            raise ValueError(f"{name} must be a number from {LOWEST_LIMIT} to {highest}")
    return limits
