"""What `RebaserClient.connect` and `RebaserClient.open` can be told."""

from typing import cast

from rebaser_client.nats.access import Access
from rebaser_core.encoding.envelope import CBOR, ContentType
from rebaser_core.errors import ConfigError, UnprocessableError
from rebaser_core.limits import Limits


class ClientOptions(Access, total=False):
    """Those of `Access`: who we are to NATS and whom we trust; and the following, all of them optional.

    `prefix`, `blobs` and `limits` must be those of the servers. `prefix`: in front of the names of streams and
    subjects. `blobs`: URL of the blob store; in NATS if not given. `inbox_prefix`: of the subjects that answers come
    on. `limits`: what a request may be. `content_type`: what requests are written in, and answers then, too: CBOR, or
    JSON (`application/json`). `check_formulas` (usually yes): whether updates with a formula that cannot be read are
    refused; it takes 0.1 ms for each formula the first time, and needs `cel-expr-python`, without which nobody looks.
    """

    prefix: str
    blobs: str | None
    inbox_prefix: str
    limits: Limits
    content_type: str
    check_formulas: bool


def access_options(options: ClientOptions) -> Access:
    """The part of `options` that the connection is opened with."""
    ours = ("prefix", "blobs", "inbox_prefix", "limits", "content_type", "check_formulas")
    return cast("Access", {name: value for name, value in options.items() if name not in ours})


def content_type_option(options: ClientOptions) -> ContentType:
    """Raises `ConfigError` for one that no server reads."""
    try:
        return ContentType.of(options.get("content_type", CBOR))
    except UnprocessableError as error:
        raise ConfigError(f"{error.message}; it is one of {', '.join(ContentType)}") from None
