"""Checks and reads the credentials and the TLS options of a connection to NATS.

Invariants: no error message contains a secret. If the URL of any server or an option requires TLS, nothing is sent to a
server without TLS. Files are read again for each connection, so certificates may be replaced while the program runs.
"""

import re
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict

import nats.errors

from rebaser_client.nats.errors import NotAuthorized, NotConnectedError, NotSecure
from rebaser_client.nats.nats_py import NoTlsError
from rebaser_core.errors import ConfigError

_Secret: TypeAlias = Literal["password", "token"]
_IN_FILES: tuple[_Secret, ...] = ("password", "token")
_CREDS = re.compile(rb"-+BEGIN NATS USER JWT-+\s+\S+\s+.*-+BEGIN USER NKEY SEED-+\s+(\S+)\s+-", re.DOTALL)
_REFUSED = re.compile(r"authorization violation|authentication (expired|revoked)", re.IGNORECASE)


class Access(TypedDict, total=False):
    """The options for credentials and TLS of a connection. All are optional, and None means that an option is not set.

    - `creds` (a credentials file), `nkey` (a file with the seed of an nkey), `user` and `password`, or `token`: the
      credentials of the client.
    - `password_file` and `token_file`: files that hold the password or the token, in place of `password` or `token`.
    - `tls_cert` and `tls_key`: PEM files with the client certificate and its key. If `tls_key` is None, the key is in
      `tls_cert`.
    - `tls_ca`: a PEM file with the authorities that may sign the certificate of the server; by default, the authorities
      of the system.
    - `tls_hostname`: the name in the certificate of the server, if it differs from the address of the server.
    - `tls_first`: whether TLS begins before the server says anything, as servers with `handshake_first` expect.
    - `tls`: an SSL context, which replaces the TLS files.
    - `domain`: the JetStream domain, which is part of the subjects of the JetStream API. It is necessary in an account
      that imports this API from another account.
    """

    creds: Path | None
    nkey: Path | None
    user: str | None
    password: str | None
    password_file: Path | None
    token: str | None
    token_file: Path | None
    tls: ssl.SSLContext | None
    tls_ca: Path | None
    tls_cert: Path | None
    tls_key: Path | None
    tls_hostname: str | None
    tls_first: bool | None
    domain: str | None


def check_access(access: Access) -> None:
    """Raise `ConfigError` for options that contradict each other, and for files that cannot be used."""
    if unknown := access.keys() - Access.__annotations__.keys():
        raise TypeError(f"unknown connection options: {', '.join(sorted(unknown))}")
    if (domain := access.get("domain")) is not None and not re.fullmatch(r"[\w-]+", domain, re.ASCII):
        raise ConfigError(f"{domain!r} cannot be a JetStream domain: use letters, digits, _ and -")
    present = _present(access)
    if "user" in present and "password" not in present:
        raise ConfigError("a NATS user needs a password: set both of them, or neither")
    if "password" in present and "user" not in present:
        raise ConfigError("a NATS password needs a user: set both of them, or neither")
    for first, second in (("creds", "nkey"), ("creds", "user"), ("nkey", "user"), ("token", "user")):
        if first in present and second in present:
            raise ConfigError(f"the NATS options {first} and {second} are both given: give only one of them")
    if "tls_key" in present and "tls_cert" not in present:
        raise ConfigError("a TLS key was given without its certificate: set tls_cert, too")
    if files := present & {"tls_ca", "tls_cert"}:
        if "tls" in present:
            raise ConfigError(
                f"`tls` and {', '.join(sorted(files))} are both set: set either the TLS context or the files"
            )
        tls_context(access)
    if creds := access.get("creds"):
        _check_seed(_CREDS.search(_read(creds, "NATS credentials file")), creds, "NATS credentials file")
    if nkey := access.get("nkey"):
        _check_seed(re.fullmatch(rb"\s*(\S+)\s*", _read(nkey, "nkey file")), nkey, "file with the seed of an nkey")


def _present(access: Access) -> set[str]:
    """Return the options that are set; a secret counts as set if its file is. Raise `ConfigError` if both are set, and
    if the file holds no secret."""
    present = {name for name, value in access.items() if value is not None}
    for name in _IN_FILES:
        if {name, f"{name}_file"} <= present:
            raise ConfigError(f"the NATS options {name} and {name}_file are both given: give only one of them")
        if f"{name}_file" in present:
            _secret(access, name)
            present.add(name)
    return present


def needs_tls(access: Access, servers: Iterable[str]) -> bool:
    """Return whether connections require TLS, because of a TLS option or because of the URL of at least one server."""
    requested = any(access.get(name) is not None for name in ("tls", "tls_ca", "tls_cert", "tls_hostname"))
    return (
        requested
        or bool(access.get("tls_first"))
        or any(server.partition("://")[0] in ("tls", "wss") for server in servers)
    )


def tls_context(access: Access) -> ssl.SSLContext:
    """Return the SSL context that `access` describes. Raise `ConfigError` for files that cannot be used."""
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

        def encrypted() -> str:  # without this callback, OpenSSL would ask for the passphrase on the terminal
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
    """Return the arguments for credentials and TLS of nats-py's `connect`.

    `tls` is the SSL context; None for a connection without TLS. `tls_name` is the name to expect in the certificate of
    a server that another server announced.
    """
    creds, nkey = access.get("creds"), access.get("nkey")
    arguments = {
        "user": access.get("user"),
        "password": _secret(access, "password"),
        "token": _secret(access, "token"),
        "tls": tls,
        "tls_handshake_first": access.get("tls_first"),
        "tls_hostname": access.get("tls_hostname") or tls_name,
        "user_credentials": None if creds is None else str(creds),
        "nkeys_seed": None if nkey is None else str(nkey),
    }
    return {name: value for name, value in arguments.items() if value is not None}


def refusal(error: BaseException, reason: str) -> NotConnectedError:
    """Return the error to raise for an attempt to connect that failed with `error`. `reason` is the text of `error`."""
    if isinstance(error, NoTlsError):
        return NotSecure(
            f"{reason}, which a URL (tls://, wss://) or a TLS option requires: to connect without TLS, use nats:// in "
            "all URLs, and no TLS option"
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        message = getattr(error, "verify_message", reason)  # the error of aiohttp has no `verify_message`
        text = f"the certificate of the server is not trusted: {message.rstrip('.')}; check the TLS options"
        return NotSecure(text)
    if isinstance(error, ssl.SSLError):
        if "CERTIFICATE_REQUIRED" in str(error) or "BAD_CERTIFICATE" in str(error):
            return NotSecure("the server requires a client certificate that it trusts: set tls_cert and tls_key")
        return NotSecure(f"TLS failed: {(getattr(error, 'reason', None) or reason).lower().replace('_', ' ')}")
    if isinstance(error, nats.errors.Error) and _REFUSED.search(reason):
        return NotAuthorized(f"the server refuses the client ({reason.strip(chr(39))}): check the credentials")
    return NotConnectedError(reason)


def _secret(access: Access, name: _Secret) -> str | None:
    """Return the password or the token, from its file if there is one. Raise `ConfigError` if the file has none."""
    path = access.get("password_file") if name == "password" else access.get("token_file")
    if path is None:
        return access.get(name)
    try:
        text = _read(path, f"file with the NATS {name}").decode().strip()
    except UnicodeDecodeError:
        text = ""
    if not text:
        raise ConfigError(f"{path} holds no NATS {name}: it must be text in UTF-8")
    return text


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"there is no {what} {path}") from None
    except OSError as error:
        raise ConfigError(f"{what} {path} cannot be read: {error.strerror}") from None


def _check_seed(match: re.Match[bytes] | None, path: Path, what: str) -> None:
    # The file is checked here, because nats-py would read an invalid credentials file in an endless loop, or raise
    # errors of other libraries.
    try:
        import nkeys  # noqa: PLC0415 - an optional dependency of nats-py
    except ImportError as error:
        raise ConfigError(f"a {what} needs the package {error.name}: pip install {error.name}") from None
    seed = bytearray(b"" if match is None else match[1])
    try:
        nkeys.from_seed(seed).wipe()
    except Exception:  # noqa: BLE001 - the text of the error may contain the seed
        raise ConfigError(f"{path} is not a {what}") from None
