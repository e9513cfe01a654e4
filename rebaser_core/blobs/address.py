"""Addresses of blobs: the hash of their content, so that every reader can check a blob."""

import re
from hashlib import sha256

from rebaser_core.errors import UnprocessableError

ADDRESS_BYTES = 32  # bytes of the hash in an address

_ADDRESS = re.compile(r"sha256:[0-9a-f]{64}")
_IN_BYTES = re.compile(_ADDRESS.pattern.encode())


def address_of(data: bytes) -> str:
    """Return the address of a blob: `sha256:` and 64 hexadecimal digits."""
    return f"sha256:{sha256(data).hexdigest()}"


def is_address(address: object) -> bool:
    """Return whether `address` is a blob address."""
    return type(address) is str and _ADDRESS.fullmatch(address) is not None


def check_address(address: object) -> str:
    """Return `address`; raises `UnprocessableError` (code `invalid_address`) if it is not a blob address."""
    if type(address) is not str or not is_address(address):
        raise UnprocessableError(
            f"{str(address)[:80]!r} is not a blob address (sha256: and 64 hexadecimal digits)", code="invalid_address"
        )
    return address


def bytes_of_address(address: str) -> bytes:
    """Return the hash in `address`."""
    return bytes.fromhex(address.partition(":")[2])


def address_of_bytes(digest: bytes) -> str:
    """Return the address with the hash `digest`; raises `UnprocessableError` if `digest` has the wrong length."""
    return check_address(f"sha256:{digest.hex()}")


def find_addresses(data: bytes) -> set[str]:
    """Return all blob addresses in `data`, which may be any bytes."""
    return {found.decode() for found in _IN_BYTES.findall(data)}


def path_of(address: str) -> str:
    """Return the path of a blob in a file or object store. Blobs are spread over folders, because some file systems are
    slow with a million files in one folder."""
    algorithm, _, digest = address.partition(":")
    return f"{algorithm}/{digest[:2]}/{digest}"
