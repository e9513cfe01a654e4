"""Addresses of blobs: the hash of what they hold, so that a blob can be checked by whoever reads it."""

import re
from hashlib import sha256

from rebaser_core.errors import UnprocessableError

_ADDRESS = re.compile(r"sha256:[0-9a-f]{64}")


def address_of(data: bytes) -> str:
    """`sha256:` and 64 hexadecimal digits."""
    return f"sha256:{sha256(data).hexdigest()}"


def is_address(address: object) -> bool:
    """Whether `address` is one."""
    return type(address) is str and _ADDRESS.fullmatch(address) is not None


def check_address(address: object) -> str:
    """`address` if it is one, else raises `UnprocessableError` (code `invalid_address`)."""
    if type(address) is not str or not is_address(address):
        raise UnprocessableError(f"{str(address)[:80]!r} is not a blob address", code="invalid_address")
    return address


def path_of(address: str) -> str:
    """Where a store of files or objects keeps the blob: spread over folders, because some file systems are slow with a
    million files in one."""
    algorithm, _, digest = address.partition(":")
    return f"{algorithm}/{digest[:2]}/{digest}"
