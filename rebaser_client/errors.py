"""The errors that the client raises, in addition to those of `rebaser_core.errors` and `rebaser_client.nats.errors`."""

from collections.abc import Mapping
from typing import ClassVar, Literal, TypeAlias

from rebaser_core.errors import REQUEST_ID_REUSED, Disposition, RebaserError, TransientError, UnprocessableError
from rebaser_core.ids import ChangeSetKey, RequestId, first_of
from rebaser_core.response import Conflicts, EnqueueUpdatesResponse, Failure, Success
from rebaser_core.values import Fault, State


class NotReadyError(TransientError):
    """NATS answers, but the streams of Rebaser are not available. There are three possible causes: no server has
    created the streams yet, the client uses a different prefix or NATS account from the servers, or JetStream is not
    available."""

    default_code = "not_ready"

    def __init__(self) -> None:
        super().__init__(
            "NATS answers, but the streams of Rebaser are not available: start a server, which creates them, or check "
            "that the prefix and the NATS account are those of the servers, and that JetStream is available"
        )


Scope: TypeAlias = Literal["change set", "all"]


class QueueFull(TransientError):  # noqa: N818 - named after a state of the queue
    """The queue of the change set (`scope` is "change set") or of the installation ("all") is full. Nothing was stored.

    Try again after `retry_after` seconds. This delay grows for as long as the queue stays full, and includes a random
    part, so that callers do not all try again at once.
    """

    default_code = "queue_full"

    def __init__(self, key: ChangeSetKey, scope: Scope, retry_after: float, reason: str) -> None:
        problem = f"the queue of {key} is full" if scope == "change set" else "NATS has no room for more requests"
        super().__init__(f"{problem} ({reason}); try again in {retry_after:.1f} s")
        self.key = key
        self.scope = scope
        self.retry_after = retry_after


class TooLarge(UnprocessableError):  # noqa: N818 - named after a state of the request
    """The request is larger than the installation accepts. Nothing was stored. Split the request.

    `size` and `limit` are bytes; `limit` is None if NATS refused the request without stating its limit.
    """

    default_code = "too_large"

    def __init__(self, size: int, limit: int | None) -> None:
        allowed = "NATS accepts" if limit is None else f"the {limit:,} allowed"
        super().__init__(f"the request has {size:,} bytes, more than {allowed}; split it into several requests")
        self.size = size
        self.limit = limit


class RequestTimeout(TransientError):  # noqa: N818 - named after a state of the request
    """The request did not complete within the timeout.

    If no answer arrived, `commit` is None, and the request may still be applied; to find out, send it again with the
    same `request_id`. Otherwise, the request was applied in the commit at log sequence `commit`, but derived values
    were not up to date yet; `wait_covered` waits until they are.

    `apply` also raises this error, without sending its request, if the derived values of the branch were not up to date
    within the timeout. In that case, the message says that nothing was sent.
    """

    default_code = "request_timeout"

    def __init__(
        self, request_id: RequestId, timeout: float, commit: int | None = None, *, unsent_for: str = ""
    ) -> None:
        late = f"not up to date within {timeout:g} s"
        if unsent_for:
            text = f"derived values of {unsent_for} were {late}; the request was not sent, and nothing was applied"
        elif commit is None:
            text = (
                f"request {request_id} was not answered within {timeout:g} s, and may still be applied; to find out, "
                "send it again with the same id"
            )
        else:
            text = f"request {request_id} was applied in commit {commit}, but derived values were {late}"
        super().__init__(text)
        self.request_id = request_id
        self.commit = commit


class RequestRejected(RebaserError):  # noqa: N818 - named after a state of the request
    """The request was rejected, and nothing was applied. `response` gives the reason. Sending the same request again
    does not help."""

    disposition: ClassVar[Disposition] = Disposition.REJECT
    default_code = "rejected"

    def __init__(self, request_id: RequestId, response: EnqueueUpdatesResponse) -> None:
        status = response.status
        code = status.code if isinstance(status, Failure) else None
        self.request_id = request_id
        self.response = response
        super().__init__(f"request {request_id} was rejected: {self.reason}", code=code)

    @property
    def reason(self) -> str:
        """The reason why the request was rejected, without the request id."""
        status = self.response.status
        return "" if isinstance(status, Success) else status.message


class RequestConflicts(RequestRejected):
    """Nothing was applied, because the request conflicts with the current content of the change set.

    There are three causes: updates from another change set (`from_change_set`) remove values that do not exist; a
    revert would undo the edits of values that have been edited again; or a branch and its target both edited a value.

    `conflicts` has the first 100 values in conflict, each with the reason; for a revert or a branch, also with the
    conflicting definitions. If a request with updates from another change set is sent again, `conflicts` is empty in
    the second answer. The message always lists up to ten values.
    """

    default_code = "conflicts"

    def __init__(self, request_id: RequestId, response: EnqueueUpdatesResponse) -> None:
        super().__init__(request_id, response)
        status = response.status
        self.conflicts = status.conflicts if isinstance(status, Conflicts) else ()


class RequestIdReused(RequestRejected):
    """An earlier request had the same id but different content. The outcome of that request does not change."""

    default_code = REQUEST_ID_REUSED


class NewErrors(UnprocessableError):  # noqa: N818 - named after a state of the branch
    """Some values are errors in the branch, but not in its target. The branch was not applied.

    `errors` maps the ids of these values to their faults. Values that fail by themselves come first, then values that
    fail because one of their inputs does.
    """

    default_code = "new_errors"

    def __init__(self, branch: str, target: str, errors: Mapping[str, Fault]) -> None:
        super().__init__(f"{branch} has errors that {target} does not have: {first_of(list(errors))}")
        self.errors = errors


class UnresolvedConflicts(UnprocessableError):  # noqa: N818 - named after a state of the branch
    """The branch has conflicts with its target, and was not applied. `RebaserClient.conflicts` returns the conflicts.
    `count` is their number.
    """

    default_code = "unresolved"

    def __init__(self, branch: str, target: str, count: int) -> None:
        super().__init__(
            f"{branch} has {count:,} conflict{'' if count == 1 else 's'} with {target}: resolve them, and apply again"
        )
        self.branch = branch
        self.target = target
        self.count = count


class ValueNotReady(RebaserError):  # noqa: N818 - named after a state of the value
    """The value `id` cannot be used now.

    `state` is its state: `stale`, `error` or `unset`; None if it does not exist. `error` is its fault if the state is
    `error`; it has the error code and the id of the value in which the failure began.
    """

    default_code = "value_not_ready"

    def __init__(self, id_: str, state: State | None, error: Fault | None = None) -> None:
        if error is not None:
            text = f"is an error: {error.code}: {error.message}"
        elif state is None:
            text = "does not exist: set or derive it first"
        else:
            text = (
                "is not up to date: wait for its update" if state is State.STALE else f"is {state.value}: set it first"
            )
        super().__init__(f"the value {id_!r} {text}")
        self.id = id_
        self.state = state
        self.error = error
