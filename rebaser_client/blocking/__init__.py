"""The client for programs without an event loop: scripts, notebooks and threads.

`client` contains `BlockingRebaserClient`, which has the methods of `RebaserClient`. `portal` runs the calls on an event
loop in a separate thread, which all blocking clients of a process share.

This package imports the rest of `rebaser_client`; no other package of `rebaser_client` imports this one.
"""

from rebaser_client.blocking.client import BlockingRebaserClient
from rebaser_client.blocking.portal import BlockingIterator

__all__ = ["BlockingIterator", "BlockingRebaserClient"]
