"""Blobs in a folder, or in S3, Google or Azure storage, through obstore.

Invariants: a blob appears completely or not at all. A blob that exists, is intact and was stored recently is not
written again. The error texts of a store are not shown, because they may contain signed URLs.

Garbage collection first moves a blob to the folder `trash/`, and later deletes it from there. These stores cannot make
a deletion depend on whether the object is unchanged, so a blob may be moved to the trash although a new message refers
to it. For this reason, a get that does not find a blob also looks in the trash, and moves the blob back.
"""

import os
from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import anyio
import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotSupportedError
from obstore.store import LocalStore, from_url

from rebaser_client.blobs.store import MAX_BLOB, BlobCorrupt, BlobMissing, address_of, check_address, verify
from rebaser_client.logs import get_logger
from rebaser_core.blobs import garbage
from rebaser_core.blobs.address import is_address, path_of
from rebaser_core.blobs.garbage import StoredBlob
from rebaser_core.errors import ConfigError, TransientError, UnprocessableError

log = get_logger(__name__)

T = TypeVar("T")

TRASH = "trash/"
INSTALLATIONS = "installations"  # the folder that contains a note of each installation that uses the store
SCHEMES = ("file", "s3", "gs", "az")
LISTED = 1000  # objects in one page of a listing
BOUND = 120.0  # the maximum number of seconds for one operation, including its retries
RETRY = {"max_retries": 5, "retry_timeout": timedelta(seconds=BOUND / 2)}


class ObjectStoreBlobs:
    """A `BlobStore` at `url`: file:///folder, s3://bucket/prefix, gs://…, az://….

    Credentials are read from the standard places of each cloud, such as environment variables. The constructor raises
    `ConfigError` for a URL that cannot be used.
    """

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
        except ValueError:
            # The message does not show the URL, which may contain a secret.
            text = "the blob store URL is not valid: use file:///folder, s3://bucket/prefix, gs://… or az://…"
            raise ConfigError(text) from None
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
            _, stored = await self._read(address, len(data))
        except BlobMissing:
            await self._write(address, data, "create")
        except (BlobCorrupt, UnprocessableError):
            await self._write(address, data, "overwrite")
        else:
            if (datetime.now(UTC) - stored).total_seconds() <= garbage.FRESH_FOR:
                return address
            await self._write(address, data, "overwrite")
        await self.get(address, max_bytes=len(data))
        return address

    async def get(self, address: str, *, max_bytes: int = MAX_BLOB) -> bytes:
        data, _ = await self._read(address, max_bytes)
        return data

    async def has(self, address: str) -> bool:
        path = path_of(check_address(address))
        try:
            await _bounded(obstore.head_async(self._store, path), "read")
        except FileNotFoundError:
            try:
                return await self._move(TRASH + path, path)
            except FileNotFoundError:
                return False
        return True

    async def _read(self, address: str, max_bytes: int) -> tuple[bytes, datetime]:
        """Return the content of the blob, and the time when it was stored. If the blob is in the trash, move it
        back."""
        path = path_of(check_address(address))
        try:
            try:
                stored = await _bounded(obstore.get_async(self._store, path), "read")
            except FileNotFoundError:
                await self._move(TRASH + path, path)
                log.info("blob_restored", address=address)
                stored = await _bounded(obstore.get_async(self._store, path), "read")
            size = stored.meta["size"]
            if size > max_bytes:
                raise UnprocessableError(
                    f"blob {address} has {size} bytes; at most {max_bytes} are allowed", code="too_large"
                )
            data = bytes(await _bounded(stored.bytes_async(), "read"))
        except FileNotFoundError:
            raise BlobMissing(f"there is no blob {address} in the blob store") from None
        return await anyio.to_thread.run_sync(verify, address, data), stored.meta["last_modified"]

    # -- the trash -------------------------------------------------------------------------------------------------

    async def stored(self) -> AsyncIterator[StoredBlob]:
        listing = obstore.list(self._store, chunk_size=LISTED)
        while chunk := await _bounded(_next_chunk(listing), "listed"):
            for found in chunk:
                folder, _, digest = found["path"].rpartition("/")
                address, trashed = f"sha256:{digest}", folder.startswith(TRASH)
                if is_address(address) and found["path"] == (TRASH if trashed else "") + path_of(address):
                    yield StoredBlob(address, found["size"], _ms(found), _version(found), trashed)

    async def register(self, installation: str) -> None:
        path = f"{INSTALLATIONS}/{sha256(installation.encode()).hexdigest()[:32]}"
        await _bounded(obstore.put_async(self._store, path, installation.encode(), use_multipart=False), "written")
        if self._folder is not None:
            await anyio.to_thread.run_sync(_sync, self._folder / path)

    async def installations(self) -> dict[str, str]:
        notes: dict[str, str] = {}
        listing = obstore.list(self._store, INSTALLATIONS, chunk_size=LISTED)
        while chunk := await _bounded(_next_chunk(listing), "listed"):
            for found in chunk:
                with suppress(FileNotFoundError):
                    stored = await _bounded(obstore.get_async(self._store, found["path"]), "read")
                    notes[found["path"]] = bytes(await _bounded(stored.bytes_async(), "read")).decode(errors="replace")
        return notes

    async def discard(self, blob: StoredBlob) -> bool:
        path = path_of(blob.address)
        return await self._still(path, blob) and await self._move(path, TRASH + path)

    async def restore(self, blob: StoredBlob) -> bool:
        path = path_of(blob.address)
        return await self._still(TRASH + path, blob) and await self._move(TRASH + path, path)

    async def erase(self, blob: StoredBlob) -> bool:
        path = TRASH + path_of(blob.address)
        if not await self._still(path, blob):
            return False
        await _bounded(obstore.delete_async(self._store, path), "deleted")
        return True

    async def _still(self, path: str, blob: StoredBlob) -> bool:
        """Return whether the object at `path` is unchanged since it was listed as `blob`."""
        try:
            return _version(await _bounded(obstore.head_async(self._store, path), "read")) == blob.version
        except FileNotFoundError:
            return False

    async def _move(self, source: str, target: str) -> bool:
        """Move the object at `source` to `target`. Raise `FileNotFoundError` if there is no object at `source`."""
        # A copy made by the store may keep the modification time of its source, but a blob in the trash needs the time
        # when it was moved there. The content is therefore read and written again.
        stored = await _bounded(obstore.get_async(self._store, source), "read")
        data = await _bounded(stored.bytes_async(), "read")
        await _bounded(obstore.put_async(self._store, target, data, use_multipart=False), "written")
        if self._folder is not None:
            await anyio.to_thread.run_sync(_sync, self._folder / target)
        await _bounded(obstore.delete_async(self._store, source), "deleted")
        return True

    async def _write(self, address: str, data: bytes, mode: Any) -> None:
        path = path_of(address)
        try:
            await _bounded(obstore.put_async(self._store, path, data, mode=mode, use_multipart=False), "written")
        except AlreadyExistsError:
            return  # another writer has stored the blob; the caller reads it back
        except NotSupportedError:
            await _bounded(obstore.put_async(self._store, path, data, use_multipart=False), "written")
        if self._folder is not None:
            await anyio.to_thread.run_sync(_sync, self._folder / path)


async def _next_chunk(listing: Any) -> Any:
    try:
        return await listing.__anext__()
    except StopAsyncIteration:
        return []


def _ms(found: Any) -> int:
    return int(found["last_modified"].timestamp() * 1000)


def _version(found: Any) -> str:
    return f"{found.get('e_tag') or ''} {_ms(found)}"


async def _bounded(operation: Awaitable[T], participle: str) -> T:
    """Return the result of `operation`. Raise `TransientError` if it takes longer than `BOUND` seconds, or if the store
    reports an error.

    `participle` describes the operation in the error text, for example `read`. `FileNotFoundError`,
    `AlreadyExistsError` and `NotSupportedError` are raised unchanged, because callers handle them.
    """
    try:
        with anyio.fail_after(BOUND):
            return await operation
    except (FileNotFoundError, AlreadyExistsError, NotSupportedError):
        raise
    except (BaseError, OSError, ValueError) as error:
        raise TransientError(
            f"a blob could not be {participle} ({type(error).__name__}): check the blob store", code="blob_store"
        ) from None


def _sync(path: Path) -> None:
    """Sync the file, and the folder that contains it, to disk."""
    for entry in (path, path.parent):
        descriptor = os.open(entry, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
