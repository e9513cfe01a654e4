"""Sizes of blobs of about one and of several chunks, and the paths of blobs in a store in a folder."""

from pathlib import Path

from rebaser_client.blobs.nats import CHUNK

SIZES = [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 20 * CHUNK + 7]


def path_of(folder: Path, address: str) -> Path:
    """Return the path of a blob in the store at file://folder/a/b."""
    (path,) = (folder / "a" / "b").rglob(address.partition(":")[2])
    return path


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]
