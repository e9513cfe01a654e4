"""Content-addressed blobs: batches, deltas and checkpoints too large for a message."""

from rebaser_client.blobs.nats import JetStreamBlobs
from rebaser_client.blobs.store import BlobCorrupt, BlobMissing, BlobStore
from rebaser_client.jetstream import JetStream
from rebaser_core.errors import ConfigError

__all__ = ["BlobCorrupt", "BlobMissing", "BlobStore", "JetStreamBlobs", "open_blobs"]


def open_blobs(url: str | None, js: JetStream, bucket: str) -> BlobStore:
    """The store at `url` (file://, s3://, gs://, az://), or the one in NATS; raises `ConfigError` for a bad url."""
    if url is None:
        return JetStreamBlobs(js, bucket)
    try:
        from rebaser_client.blobs.object_store import ObjectStoreBlobs  # noqa: PLC0415 - obstore is large, and seldom needed
    except ModuleNotFoundError as error:
        raise ConfigError(f"this blob store needs {error.name}: pip install 'rebaser[blobs]'") from error
    return ObjectStoreBlobs(url)
