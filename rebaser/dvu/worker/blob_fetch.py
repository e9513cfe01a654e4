"""The worker's side of a blob store: an address in, its bytes out, with blocking calls and little to import.

A worker has no event loop and no client of NATS, so it reads the folder or the bucket by itself. It needs the package
obstore for that, the right to read, and for a bucket what the cloud's tools look for (variables, a role of its host).
Invariant: what is returned has the hash it was asked for.
"""

from collections.abc import Callable
from datetime import timedelta
from functools import cache
from typing import Any

from rebaser_core.blob_address import address_of, check_address, path_of
from rebaser_core.errors import DvuError

_RETRY = {"max_retries": 3, "retry_timeout": timedelta(seconds=30)}


@cache
def open_store(url: str) -> Callable[[str], bytes]:
    """The `get` of the store that `rebaser_client.blobs` keeps at `url` (file://, s3://, gs://, az://).

    `get(address)` raises `DvuError`: `blob_missing` for what is not there, or not yet; `blob_corrupt` for what does not
    have its hash; `blob_store` if the store cannot be had from this machine. What a store says about that is not passed
    on: it may hold signed addresses.
    """
    try:
        import obstore  # noqa: PLC0415 - not all workers have a store to read
        from obstore.exceptions import BaseError  # noqa: PLC0415
        from obstore.store import from_url  # noqa: PLC0415
    except ImportError as error:
        raise DvuError(f"Spark's workers cannot read blobs: {error}", code="blob_store") from None
    given: dict[str, Any] = {} if url.startswith("file:") else {"retry_config": _RETRY}
    try:
        store = from_url(url, **given)
    except (BaseError, ValueError, OSError) as error:
        raise DvuError(
            f"a Spark worker cannot open the blob store ({type(error).__name__})", code="blob_store"
        ) from None

    def get(address: str) -> bytes:
        try:
            data = bytes(obstore.get(store, path_of(check_address(address))).bytes())
        except FileNotFoundError:
            raise DvuError(f"a Spark worker finds no blob {address}", code="blob_missing") from None
        except (BaseError, ValueError, OSError) as error:
            raise DvuError(f"a Spark worker cannot read a blob ({type(error).__name__})", code="blob_store") from None
        if address_of(data) != address:
            raise DvuError(f"blob {address} does not have its hash", code="blob_corrupt")
        return data

    return get
