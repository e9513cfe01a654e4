"""`rebaser`, one version of the message set ahead: requests of version 3, and a log whose commits are of version 2.

The newer request calls its updates `edits`; the newer commit says in which `region` it was written.
"""

import sys
from collections.abc import Mapping
from typing import Any

from rebaser.change_set import commit_log, reading
from rebaser.cli import main
from rebaser_client import log_reader
from rebaser_core.commit import Commit
from rebaser_core.envelope import Body, MessageType, Registry
from rebaser_core.limits import COMMIT_LIMITS, Limits
from rebaser_core.messages.commit import COMMIT, CommitV1, check_is_commit, sweep_headers
from rebaser_core.messages.request import REQUEST, EnqueueUpdatesRequest, RequestV1, RequestV2
from rebaser_core.messages.response import RESPONSE


class RequestV3(Body):
    id: str
    workspace_id: str
    change_set_id: str
    edits: list[Any] | None = None
    updates_address: str | None = None
    from_change_set_id: str | None = None


class CommitV2(CommitV1):
    region: str


def upgrade_request(old: RequestV2) -> RequestV3:
    fields = {name: getattr(old, name) for name in RequestV2.model_fields}
    return RequestV3.model_construct(edits=fields.pop("updates"), **fields)


def read_request(body: RequestV3, limits: Limits) -> EnqueueUpdatesRequest:
    fields = {name: getattr(body, name) for name in RequestV3.model_fields}
    return REQUEST.read(RequestV2.model_construct(updates=fields.pop("edits"), **fields), limits)


def write_request(request: EnqueueUpdatesRequest, version: int) -> dict[str, Any]:
    wire = REQUEST.write(request, min(version, 2))
    if version > 2 and "updates" in wire:
        wire["edits"] = wire.pop("updates")
    return wire


def upgrade_commit(old: CommitV1) -> CommitV2:
    return CommitV2.model_construct(region="", **{name: getattr(old, name) for name in CommitV1.model_fields})


def write_commit(commit: Commit, version: int) -> dict[str, Any]:
    return COMMIT.write(commit, 1) | ({"region": "here"} if version > 1 else {})


NEWER = Registry(
    (
        MessageType(
            REQUEST.name,
            EnqueueUpdatesRequest,
            (RequestV1, RequestV2, RequestV3),
            (*REQUEST.upgrades, upgrade_request),
            read_request,
            write_request,
        ),
        RESPONSE,
        MessageType(COMMIT.name, Commit, (CommitV1, CommitV2), (upgrade_commit,), COMMIT.read, write_commit),
    )
)


def encode_commit(commit: Commit) -> tuple[dict[str, str], bytes]:
    headers, payload = NEWER.encode(commit)
    return headers | sweep_headers(commit), payload


def decode_commit(headers: Mapping[str, str] | None, payload: bytes, limits: Limits = COMMIT_LIMITS) -> Commit:
    check_is_commit(headers)
    return NEWER.decode(headers, payload, limits, Commit)


if __name__ == "__main__":
    reading.decode = NEWER.decode
    commit_log.encode_commit = encode_commit  # type: ignore[assignment]
    commit_log.decode_commit = log_reader.decode_commit = decode_commit  # type: ignore[assignment]
    sys.exit(main())
