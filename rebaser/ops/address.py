"""Parses the address of the ops port."""

import re

LOOPBACK = "127.0.0.1"
_ADDRESS = re.compile(r"(?:(?P<host>[^:\[\]\s/]+|\[[0-9a-fA-F:.]+\])?:)?(?P<port>\d{1,5})")


def parse_address(text: str) -> tuple[str, int]:
    """Return the host and the port in `HOST:PORT`; the default host is the loopback address. Raises `ValueError` if
    `text` has another form."""
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found["port"]) > 65_535:
        raise ValueError(f"{text[:80]!r} is not HOST:PORT; use 127.0.0.1:8421, or 0.0.0.0:8421 for all interfaces")
    return (found["host"] or LOOPBACK).strip("[]"), int(found["port"])
