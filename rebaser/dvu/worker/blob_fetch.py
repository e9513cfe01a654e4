"""Reads blobs in a worker, by address, with blocking calls and few imports.

A worker has no event loop and no NATS client, so it reads the folder or the bucket itself. It needs the package obstore
and permission to read. For a bucket, it also needs credentials where the cloud's own tools find them, such as
environment variables or a role of the host.

Invariant: the bytes that are returned have the hash in their address.
"""

from collections.abc import Callable
from datetime import timedelta
from functools import cache
from typing import Any

from rebaser_core.blobs.address import address_of, check_address, path_of
from rebaser_core.errors import DvuError

_RETRY = {"max_retries": 3, "retry_timeout": timedelta(seconds=30)}


@cache
def open_store(url: str) -> Callable[[str], bytes]:
    """Return a function `get(address)` that reads from the blob store at `url` (file://, s3://, gs://, az://), to which
    `rebaser_client.blobs` writes.

    `get` raises `DvuError` with code `blob_missing` if the blob is not stored (yet), `blob_corrupt` if the bytes do not
    have the hash in the address, and `blob_store` if this machine cannot use the store. `open_store` itself may also
    raise the error `blob_store`. The store's own error texts are not shown, because they may contain signed URLs.
    """
    try:
        import obstore  # noqa: PLC0415 - not all workers read a store
        from obstore.exceptions import BaseError  # noqa: PLC0415
        from obstore.store import from_url  # noqa: PLC0415
    except ImportError as error:
        text = f"Spark's workers cannot read blobs: {error}; install 'rebaser[blobs]' on their machines"
        raise DvuError(text, code="blob_store") from None
    options: dict[str, Any] = {} if url.startswith("file:") else {"retry_config": _RETRY}
    try:
        store = from_url(url, **options)
    except (BaseError, ValueError, OSError) as error:
        raise DvuError(
            f"a Spark worker cannot open the blob store ({type(error).__name__}): check its URL", code="blob_store"
        ) from None

    def get(address: str) -> bytes:
        try:
            data = bytes(obstore.get(store, path_of(check_address(address))).bytes())
        except FileNotFoundError:
            raise DvuError(f"a Spark worker cannot find blob {address}", code="blob_missing") from None
        except (BaseError, ValueError, OSError) as error:
            raise DvuError(
                f"a Spark worker cannot read a blob ({type(error).__name__}): check its credentials", code="blob_store"
            ) from None
        if address_of(data) != address:
            raise DvuError(f"the content of blob {address} does not match its hash", code="blob_corrupt")
        return data

    return get
