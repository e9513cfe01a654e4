"""Blobs in a folder, or in S3, Google or Azure storage, through obstore.

Invariants: a blob appears whole or not at all. A blob that exists and is intact is never written again. The error texts
of a store are not passed on, because they may contain signed addresses.
"""

import os
from collections.abc import Awaitable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import anyio
import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotSupportedError
from obstore.store import LocalStore, from_url

from rebaser_client.blobs.store import MAX_BLOB, BlobCorrupt, BlobMissing, address_of, check_address, verify
from rebaser_core.blob_address import path_of
from rebaser_core.errors import ConfigError, TransientError, UnprocessableError

T = TypeVar("T")

SCHEMES = ("file", "s3", "gs", "az")
BOUND = 120.0  # seconds for one operation, including its retries
RETRY = {"max_retries": 5, "retry_timeout": timedelta(seconds=BOUND / 2)}


class ObjectStoreBlobs:
    """A `BlobStore` at `url`: file:///folder, s3://bucket/prefix, gs://…, az://….

    Credentials come from the places where each cloud's tools look for them. Raises `ConfigError` for an unusable url.
    """

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
        except ValueError:
            raise ConfigError("the URL of the blob store is not valid") from None  # not shown: it may contain a secret
        shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        if parts.scheme not in SCHEMES:
            raise ConfigError(
                f"blob store {shown!r} must begin with one of {', '.join(f'{scheme}://' for scheme in SCHEMES)}"
            )
        local = parts.scheme == "file"
        options: dict[str, Any] = {"mkdir": True} if local else {"retry_config": RETRY}
        try:
            self._store = from_url(url, **options)
        except (BaseError, ValueError, OSError) as error:
            raise ConfigError(
                f"blob store {shown} cannot be opened ({type(error).__name__}): check its URL, the access to it, and "
                "the credentials in the environment"
            ) from None
        self._folder = Path(parts.path) if local and isinstance(self._store, LocalStore) else None

    async def put(self, data: bytes) -> str:
        address = await anyio.to_thread.run_sync(address_of, data)
        try:
            await self.get(address, max_bytes=len(data))
        except BlobMissing:
            await self._write(address, data, "create")
        except (BlobCorrupt, UnprocessableError):
            await self._write(address, data, "overwrite")
        else:
            return address
        await self.get(address, max_bytes=len(data))
        return address

    async def get(self, address: str, *, max_bytes: int = MAX_BLOB) -> bytes:
        path = path_of(check_address(address))
        try:
            stored = await _bounded(obstore.get_async(self._store, path), "read")
            size = stored.meta["size"]
            if size > max_bytes:
                raise UnprocessableError(
                    f"blob {address} has {size} bytes; at most {max_bytes} are allowed", code="too_large"
                )
            data = bytes(await _bounded(stored.bytes_async(), "read"))
        except FileNotFoundError:
            raise BlobMissing(f"there is no blob {address} in the blob store") from None
        return await anyio.to_thread.run_sync(verify, address, data)

    async def _write(self, address: str, data: bytes, mode: Any) -> None:
        path = path_of(address)
        try:
            await _bounded(obstore.put_async(self._store, path, data, mode=mode, use_multipart=False), "written")
        except AlreadyExistsError:
            return  # another writer was faster; the caller reads the blob back
        except NotSupportedError:
            await _bounded(obstore.put_async(self._store, path, data, use_multipart=False), "written")
        if self._folder is not None:
            await anyio.to_thread.run_sync(_sync, self._folder / path)


async def _bounded(operation: Awaitable[T], participle: str) -> T:
    """Return the result of `operation`. Raises `TransientError` after `BOUND` seconds, and for errors of the store.

    The errors that callers distinguish are raised unchanged.
    """
    try:
        with anyio.fail_after(BOUND):
            return await operation
    except (FileNotFoundError, AlreadyExistsError, NotSupportedError):
        raise
    except (BaseError, OSError, ValueError) as error:
        raise TransientError(f"a blob could not be {participle} ({type(error).__name__})", code="blob_store") from None


def _sync(path: Path) -> None:
    """Sync the file, and the folder that contains it, to disk."""
    for entry in (path, path.parent):
        descriptor = os.open(entry, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
