"""Parses the address of an HTTP port, and opens a listening socket at that address."""

import errno
import re
import socket

import anyio

from rebaser_core.errors import ConfigError

LOOPBACK = "127.0.0.1"
BACKLOG = 64  # maximum number of connections that wait to be accepted
_ADDRESS = re.compile(r"(?:(?P<host>[^:\[\]\s/]+|\[[0-9a-fA-F:.]+\])?:)?(?P<port>\d{1,5})")


def parse_address(text: str) -> tuple[str, int]:
    """Return the host and the port in `HOST:PORT`; the default host is the loopback address. Raise `ValueError` if
    `text` has another form."""
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found["port"]) > 65_535:
        raise ValueError(f"{text[:80]!r} is not HOST:PORT; use 127.0.0.1:8421, or 0.0.0.0:8421 for all interfaces")
    return (found["host"] or LOOPBACK).strip("[]"), int(found["port"])


async def listen(address: str) -> socket.socket:
    """Return a socket that listens at `address`, which has the form `HOST:PORT`. Raise `ConfigError` if the address
    cannot be used."""
    host, port = parse_address(address)
    try:
        family, kind, *_, target = (await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM))[0]
        listener = socket.socket(family, kind)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(target)
            listener.listen(BACKLOG)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        reason = "it is in use" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
        raise ConfigError(
            f"the HTTP address {address} cannot be used: {reason}; choose another with --http (port 0: any free one)"
        ) from None
    return listener
