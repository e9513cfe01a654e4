"""Sizes of blobs that matter, and where the store in a folder keeps its files."""

from pathlib import Path

from rebaser_client.blobs.nats import CHUNK

SIZES = [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 20 * CHUNK + 7]


def path_of(folder: Path, address: str) -> Path:
    """Where the store at file://folder/a/b keeps a blob."""
    (path,) = (folder / "a" / "b").rglob(address.partition(":")[2])
    return path


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]
