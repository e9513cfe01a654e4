"""What `RebaserClient.connect` and `RebaserClient.open` can be told."""

from pathlib import Path
from typing import TypedDict

from rebaser_core.limits import Limits


class ClientOptions(TypedDict, total=False):
    """`prefix`, `blobs` and `limits` must be those of the servers.

    `prefix`: in front of the names of streams and subjects. `blobs`: URL of the blob store; in NATS if not given.
    `inbox_prefix`: of the subjects that answers come on. `creds`: a NATS credentials file; `token`: a NATS token.
    `limits`: what a request may be.
    """

    prefix: str
    blobs: str | None
    inbox_prefix: str
    creds: Path | None
    token: str | None
    limits: Limits
