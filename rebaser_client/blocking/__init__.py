"""The client for programs without an event loop: scripts, notebooks and threads.

`client` has `BlockingRebaserClient`, with the methods of `RebaserClient`; `portal` runs their calls on an event loop in
a thread of its own, which all blocking clients of a process share.

This package imports the rest of `rebaser_client`; no other package there imports it.
"""

from rebaser_client.blocking.client import BlockingRebaserClient
from rebaser_client.blocking.portal import BlockingIterator

__all__ = ["BlockingIterator", "BlockingRebaserClient"]
