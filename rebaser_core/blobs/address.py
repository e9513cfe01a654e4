"""Makes, checks and finds blob addresses. A blob's address is the hash of its content, so every reader can verify the
content that it receives."""

import re
from hashlib import sha256

from rebaser_core.errors import UnprocessableError

ADDRESS_BYTES = 32  # length of the hash in an address, in bytes

_ADDRESS = re.compile(r"sha256:[0-9a-f]{64}")
_IN_BYTES = re.compile(_ADDRESS.pattern.encode())


def address_of(data: bytes) -> str:
    """Return the address of a blob with the content `data`: `sha256:` followed by 64 hexadecimal digits."""
    return f"sha256:{sha256(data).hexdigest()}"


def is_address(address: object) -> bool:
    """Return whether `address` is a well-formed blob address."""
    return type(address) is str and _ADDRESS.fullmatch(address) is not None


def check_address(address: object) -> str:
    """Return `address` unchanged. Raise `UnprocessableError` (code `invalid_address`) if it is not a blob address."""
    if type(address) is not str or not is_address(address):
        raise UnprocessableError(
            f"{str(address)[:80]!r} is not a blob address: write sha256: and then 64 hexadecimal digits, in lower case",
            code="invalid_address",
        )
    return address


def bytes_of_address(address: str) -> bytes:
    """Return the SHA-256 hash that `address` contains, as 32 bytes."""
    return bytes.fromhex(address.partition(":")[2])


def address_of_bytes(digest: bytes) -> str:
    """Return the blob address for the SHA-256 hash `digest`. Raise `UnprocessableError` if `digest` is not 32 bytes
    long."""
    return check_address(f"sha256:{digest.hex()}")


def find_addresses(data: bytes) -> set[str]:
    """Return all blob addresses that occur anywhere in `data`."""
    return {found.decode() for found in _IN_BYTES.findall(data)}


def path_of(address: str) -> str:
    """Return the path of a blob, relative to the root of a file store or object store.

    Blobs are spread over 256 folders, because some file systems are slow if one folder has a million files.
    """
    algorithm, _, digest = address.partition(":")
    return f"{algorithm}/{digest[:2]}/{digest}"
