"""The options of `RebaserClient.connect` and `RebaserClient.open`."""

from typing import cast

from rebaser_client.nats.access import Access
from rebaser_core.encoding.envelope import CBOR, ContentType
from rebaser_core.errors import ConfigError, UnprocessableError
from rebaser_core.limits import Limits
from rebaser_core.messages.request import MAX_AUTHOR

MAX_IN_FLIGHT = 256  # requests; allows 25,000 requests a second if NATS confirms each after 10 ms


class ClientOptions(Access, total=False):
    """The options of `Access` (credentials and TLS of the NATS connection), and the options below. All are optional.

    - `prefix`: prefix of the names of streams and subjects. The servers must use the same prefix.
    - `blobs`: URL of the blob store; by default, blobs are in NATS. The servers must use the same URL.
    - `limits`: the limits that requests must not exceed. The servers must have the same limits.
    - `inbox_prefix`: prefix of the subjects on which answers arrive.
    - `content_type`: encoding of requests and of their answers: CBOR (default), or JSON (`application/json`).
    - `check_formulas`: whether to refuse updates whose formula does not parse (default: true). Parsing a formula for
      the first time takes 0.1 ms. Without the package `cel-expr-python`, formulas are not checked.
    - `max_in_flight`: the maximum number of requests that the client stores at the same time (default 256). Further
      requests wait in the order of the calls, and the wait counts towards their timeouts. The option also limits how
      many requests of one `enqueue_many` may be incomplete.
    - `author`: the author that the log records for the edits of this client (up to 128 characters). Each call can
      specify another author. Servers do not verify authors.
    """

    prefix: str
    blobs: str | None
    inbox_prefix: str
    limits: Limits
    content_type: str
    check_formulas: bool
    max_in_flight: int
    author: str


def access_options(options: ClientOptions) -> Access:
    """Return the options that concern the NATS connection."""
    ours = ("prefix", "blobs", "inbox_prefix", "limits", "content_type", "check_formulas", "max_in_flight", "author")
    return cast("Access", {name: value for name, value in options.items() if name not in ours})


def content_type_option(options: ClientOptions) -> ContentType:
    """Return the content type of requests. Raise `ConfigError` for a content type that servers cannot read."""
    try:
        return ContentType.of(options.get("content_type", CBOR))
    except UnprocessableError as error:
        raise ConfigError(error.message) from None


def max_in_flight_option(options: ClientOptions) -> int:
    """Return the maximum number of requests in flight. Raise `ConfigError` unless it is a positive integer."""
    limit = options.get("max_in_flight", MAX_IN_FLIGHT)
    if type(limit) is not int or limit < 1:
        raise ConfigError(f"max_in_flight must be an integer of 1 or more, not {limit!r}")
    return limit


def author_option(options: ClientOptions) -> str:
    """Return the default author of requests. Raise `ConfigError` unless it is a string of at most `MAX_AUTHOR`
    characters."""
    author = options.get("author", "")
    if not isinstance(author, str) or len(author) > MAX_AUTHOR:
        raise ConfigError(f"author must be a string of up to {MAX_AUTHOR} characters")
    return author
