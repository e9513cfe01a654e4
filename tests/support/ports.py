"""Finds ports on loopback for servers that a test starts later, or starts again."""

import random
import socket
from contextlib import suppress

# Below the ports of outgoing connections: the kernel gives one of those to any process that connects, so a server that
# starts later, or again, might find its port taken.
PORTS = range(15_000, 30_000)


def free_ports(count: int) -> list[int]:
    """Return ports on which no process listens at present."""
    found: set[int] = set()
    while len(found) < count:
        with socket.socket() as probe, suppress(OSError):
            port = random.choice(PORTS)
            probe.bind(("127.0.0.1", port))
            found.add(port)
    return list(found)
