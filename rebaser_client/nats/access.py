"""Credentials and TLS of a connection to NATS, checked before they are used.

Invariants: no error message contains a secret. If the URL of any server or an option requires TLS, nothing is sent to a
server without TLS. Files are read again for each connection, so certificates may be replaced while the program runs.
"""

import re
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypedDict

import nats.errors

from rebaser_client.errors import NotAuthorized, NotConnectedError, NotSecure
from rebaser_client.nats.nats_py import NoTlsError
from rebaser_core.errors import ConfigError

_CREDS = re.compile(rb"-+BEGIN NATS USER JWT-+\s+\S+\s+.*-+BEGIN USER NKEY SEED-+\s+(\S+)\s+-", re.DOTALL)
_REFUSED = re.compile(r"authorization violation|authentication (expired|revoked)", re.IGNORECASE)


class Access(TypedDict, total=False):
    """Options of a connection, all of them optional (None: not given).

    The client identifies itself with one of `creds` (a credentials file), `nkey` (a file with the seed of an nkey),
    `user` and `password`, or `token`; or with a client certificate, the PEM files `tls_cert` and `tls_key` (None: the
    key is in `tls_cert`). `tls_ca` is a PEM file of the authorities that may sign the server's certificate (None: the
    authorities of the system). `tls_hostname` is the name in that certificate, if it is not the server's address. `tls`
    is a context that replaces these files. `domain` is the domain of JetStream, which is part of the subjects of its
    API (None: no domain). An account that imports this API from another account needs it.
    """

    creds: Path | None
    nkey: Path | None
    user: str | None
    password: str | None
    token: str | None
    tls: ssl.SSLContext | None
    tls_ca: Path | None
    tls_cert: Path | None
    tls_key: Path | None
    tls_hostname: str | None
    domain: str | None


def check_access(access: Access) -> None:
    """Raise `ConfigError` for options that contradict each other and for unusable files."""
    if unknown := access.keys() - Access.__annotations__.keys():
        raise TypeError(f"unknown connection options: {', '.join(sorted(unknown))}")
    if (domain := access.get("domain")) is not None and not re.fullmatch(r"[\w-]+", domain, re.ASCII):
        raise ConfigError(f"{domain!r} cannot be a JetStream domain: use letters, digits, _ and -")
    present = {name for name, value in access.items() if value is not None}
    if "user" in present and "password" not in present:
        raise ConfigError("a NATS user needs a password")
    if "password" in present and "user" not in present:
        raise ConfigError("a NATS password needs a user")
    for first, second in (("creds", "nkey"), ("creds", "user"), ("nkey", "user"), ("token", "user")):
        if first in present and second in present:
            raise ConfigError(f"{first} and {second} of NATS are both given: leave out one of them")
    if "tls_key" in present and "tls_cert" not in present:
        raise ConfigError("a TLS key was given without its certificate: give tls_cert, too")
    if files := present & {"tls_ca", "tls_cert"}:
        if "tls" in present:
            raise ConfigError(f"a TLS context replaces {', '.join(sorted(files))}: give the context or the files")
        tls_context(access)
    if creds := access.get("creds"):
        _check_seed(_CREDS.search(_read(creds, "NATS credentials file")), creds, "NATS credentials file")
    if nkey := access.get("nkey"):
        _check_seed(re.fullmatch(rb"\s*(\S+)\s*", _read(nkey, "nkey file")), nkey, "file with the seed of an nkey")


def needs_tls(access: Access, servers: Iterable[str]) -> bool:
    """Return whether connections require TLS: an option asks for it, or the URL of at least one server does."""
    requested = any(access.get(name) is not None for name in ("tls", "tls_ca", "tls_cert", "tls_hostname"))
    return requested or any(server.partition("://")[0] in ("tls", "wss") for server in servers)


def tls_context(access: Access) -> ssl.SSLContext:
    """Return the context that `access` describes. Raises `ConfigError` for unusable files."""
    if context := access.get("tls"):
        return context
    authority, certificate, key = access.get("tls_ca"), access.get("tls_cert"), access.get("tls_key")
    if authority is not None:
        _read(authority, "file of TLS authorities")
    try:
        context = ssl.create_default_context(cafile=authority)
    except (ssl.SSLError, ValueError):
        raise ConfigError(f"{authority} contains no TLS certificate in PEM format") from None
    if certificate is not None:
        _read(certificate, "TLS certificate")
        if key is not None:
            _read(key, "TLS key")

        def encrypted() -> str:  # otherwise OpenSSL would prompt on the terminal
            raise ConfigError(f"{key or certificate} is encrypted: use a TLS key without a passphrase")

        try:
            context.load_cert_chain(certificate, key, encrypted)
        except (ssl.SSLError, ValueError) as error:
            what = "does not belong to its key" if "MISMATCH" in str(error) else "cannot be read with its key"
            raise ConfigError(
                f"TLS certificate {certificate} {what}: both must be in PEM format and belong together"
            ) from None
    return context


def credentials(access: Access, *, tls: ssl.SSLContext | None, tls_name: str | None) -> dict[str, Any]:
    """Return the arguments of nats-py's `connect`.

    `tls_name` is the name to expect in the certificate of a server that another server announced.
    """
    creds, nkey = access.get("creds"), access.get("nkey")
    arguments = {
        "user": access.get("user"),
        "password": access.get("password"),
        "token": access.get("token"),
        "tls": tls,
        "tls_hostname": access.get("tls_hostname") or tls_name,
        "user_credentials": None if creds is None else str(creds),
        "nkeys_seed": None if nkey is None else str(nkey),
    }
    return {name: value for name, value in arguments.items() if value is not None}


def refusal(error: BaseException, reason: str) -> NotConnectedError:
    """Return the error for a failed attempt to connect. `reason` is the text of `error`."""
    if isinstance(error, NoTlsError):
        return NotSecure(
            f"{reason}, which a URL (tls://, wss://) or a TLS option requires: to connect without TLS, use nats:// in "
            "all URLs, and no TLS option"
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        message = getattr(error, "verify_message", reason)  # the error of aiohttp has no `verify_message`
        return NotSecure(f"the certificate of the server is not trusted: {message}".rstrip("."))
    if isinstance(error, ssl.SSLError):
        if "CERTIFICATE_REQUIRED" in str(error) or "BAD_CERTIFICATE" in str(error):
            return NotSecure("the server requires a client certificate that it trusts")
        return NotSecure(f"TLS failed: {(getattr(error, 'reason', None) or reason).lower().replace('_', ' ')}")
    if isinstance(error, nats.errors.Error) and _REFUSED.search(reason):
        return NotAuthorized(f"the server refuses the client: {reason.strip(chr(39))}")
    return NotConnectedError(reason)


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"there is no {what} {path}") from None
    except OSError as error:
        raise ConfigError(f"{what} {path} cannot be read: {error.strerror}") from None


def _check_seed(match: re.Match[bytes] | None, path: Path, what: str) -> None:
    # In a bad credentials file, nats-py would search for the beginning forever, or raise errors of other libraries.
    try:
        import nkeys  # noqa: PLC0415 - an optional dependency of nats-py
    except ImportError as error:
        raise ConfigError(f"a {what} needs the package {error.name}, which is not installed") from None
    seed = bytearray(b"" if match is None else match[1])
    try:
        nkeys.from_seed(seed).wipe()
    except Exception:  # noqa: BLE001 - the text of the error may contain the seed
        raise ConfigError(f"{path} is not a {what}") from None
