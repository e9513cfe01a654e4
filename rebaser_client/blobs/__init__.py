"""Content-addressed blob stores, for checkpoints, and for updates and deltas that are too large for a message.

`store` defines the protocol of blob stores. `nats` implements it on JetStream, and `object_store` on a folder or a
cloud store; `open_blobs` opens either kind of store. `trash` defines the protocol for garbage collection, which
`nats_trash` implements for NATS. `description` reads the descriptions of blobs in NATS. The client, the log reader and
the server use this package. Within Rebaser, it imports only `rebaser_core` and, from `rebaser_client`, `jetstream`,
`errors`, `logs`, `backoff`, `pace` and `task_groups`.
"""

from typing import TYPE_CHECKING

from rebaser_client.blobs.nats import JetStreamBlobs
from rebaser_client.blobs.nats_trash import JetStreamTrash
from rebaser_client.blobs.store import BlobCorrupt, BlobMissing, BlobStore
from rebaser_client.blobs.trash import CollectableBlobs
from rebaser_client.jetstream import JetStream
from rebaser_core.errors import ConfigError

if TYPE_CHECKING:
    from rebaser_client.blobs.object_store import ObjectStoreBlobs

__all__ = [
    "BlobCorrupt",
    "BlobMissing",
    "BlobStore",
    "CollectableBlobs",
    "JetStreamBlobs",
    "open_blobs",
    "open_collectable",
]


def open_collectable(url: str | None, js: JetStream, bucket: str) -> CollectableBlobs:
    """Open the store like `open_blobs`, but return it with the methods for garbage collection."""
    return JetStreamTrash(js, bucket) if url is None else open_object_store(url)


def open_blobs(url: str | None, js: JetStream, bucket: str) -> BlobStore:
    """Open the store at `url` (file://, s3://, gs://, az://), or the store in NATS if `url` is None.

    `bucket` is the name of the bucket for the blobs in NATS. Raise `ConfigError` for an invalid URL, or if a package
    that the store needs is not installed.
    """
    return JetStreamBlobs(js, bucket) if url is None else open_object_store(url)


def open_object_store(url: str) -> "ObjectStoreBlobs":
    """Open the store at `url`. Raise the errors of `open_blobs`."""
    try:
        from rebaser_client.blobs.object_store import ObjectStoreBlobs  # noqa: PLC0415 - imports obstore, which is large
    except ModuleNotFoundError as error:
        raise ConfigError(f"this blob store requires {error.name}: pip install 'rebaser[blobs]'") from error
    return ObjectStoreBlobs(url)
