"""Creates streams and consumers, or updates them to a wanted configuration, even if several servers do so at once.

Invariant: the wanted fields are set, and all other fields keep the values that an operator gave them. Servers that
start together all succeed, because creating or updating with the same configuration changes nothing.
"""

from collections.abc import Awaitable, Mapping
from typing import Any, Protocol

from rebaser_client.jetstream.errors import CONSUMER_EXISTS, CONSUMER_NAME_IN_USE, STREAM_NAME_IN_USE, ApiError
from rebaser_client.jetstream.names import subject_tokens
from rebaser_client.jetstream.priority_groups import check_config, check_update
from rebaser_client.logs import get_logger
from rebaser_core.errors import ConfigError

log = get_logger(__name__)

NO_PEERS = 10005  # error code (status 400): too few servers; a retry may succeed, as the cluster may still be starting


class ApiCall(Protocol):
    """The signature of `JetStream.call`."""

    def __call__(self, subject: str, body: Mapping[str, Any] | None = None, /) -> Awaitable[dict[str, Any]]: ...


async def ensure_stream(call: ApiCall, config: Mapping[str, Any], beginning: Mapping[str, Any]) -> None:
    """Implement `JetStream.ensure_stream`, whose documentation describes the arguments."""
    name = config["name"]
    what = f"stream {name}"
    try:
        await call(f"STREAM.CREATE.{subject_tokens(name)}", {**beginning, **config})
    except ApiError as error:
        if error.err_code != STREAM_NAME_IN_USE:
            raise _final(error, what) from error
    else:
        return
    current = (await call(f"STREAM.INFO.{subject_tokens(name)}"))["config"]
    if changes := differences(current, config):
        log.warning("stream_changed", stream=name, fields=difference_texts(changes))
        try:
            await call(f"STREAM.UPDATE.{subject_tokens(name)}", {**current, **config})
        except ApiError as error:
            raise _final(error, what, changes) from error


async def ensure_consumer(call: ApiCall, stream: str, config: Mapping[str, Any]) -> None:
    """Implement `JetStream.ensure_consumer`, whose documentation describes the arguments."""
    name = config["name"]
    what = f"consumer {name} of stream {stream}"
    try:
        await call(*consumer_request(stream, config, "create"))
    except ApiError as error:
        if error.err_code not in (CONSUMER_EXISTS, CONSUMER_NAME_IN_USE):
            raise _final(error, what) from error
    else:
        return
    current = (await call(f"CONSUMER.INFO.{subject_tokens(stream, name)}"))["config"]
    if differences(current, config):
        check_update(current, {**current, **config})
        try:
            await call(*consumer_request(stream, {**current, **config}, "update"))
        except ApiError as error:
            raise _final(error, what, differences(current, config)) from error


def consumer_request(
    stream: str, config: Mapping[str, Any], action: str, *, pedantic: bool = False
) -> tuple[str, dict[str, Any]]:
    """Return the subject and the body of the call that creates or updates a consumer.

    `action` is `create`, `update`, or empty. If it is empty, the call creates the consumer or updates it.
    """
    check_config(config)
    subject = f"CONSUMER.CREATE.{subject_tokens(stream, config['name'])}"
    if config.get("filter_subject"):  # the API subject must include the filter, so that permissions can depend on it
        subject += f".{config['filter_subject']}"
    body = {"stream_name": stream, "config": config, "action": action}
    return subject, {**body, "pedantic": True} if pedantic else body


def differences(current: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the fields that differ, each with the pair of its current and its wanted value.

    A missing value counts as equal to a value that is false, empty or zero, because the server omits such values.
    """
    return {
        name: (current.get(name), value)
        for name, value in wanted.items()
        if (current.get(name) or None) != (value or None)
    }


def _final(error: ApiError, what: str, changes: Mapping[str, tuple[Any, Any]] | None = None) -> Exception:
    """Return the error to raise after the server refused a call with `error`.

    This is a `ConfigError` if a retry cannot succeed, and otherwise `error` itself.
    """
    if error.status in (404, 503) or error.err_code == NO_PEERS:
        return error
    if not changes:
        return ConfigError(f"{what} cannot be created: {error.description}")
    return ConfigError(f"{what} cannot be changed ({error.description}): {'; '.join(difference_texts(changes))}")


def difference_texts(changes: Mapping[str, tuple[Any, Any]]) -> list[str]:
    """Return a readable text for each field in `changes`, the result of `differences`."""
    return [f"{name} is {current!r}, wanted {value!r}" for name, (current, value) in changes.items()]
