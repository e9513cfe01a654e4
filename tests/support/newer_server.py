"""`rebaser` with newer versions of two messages: requests of version 5, and commits of version 4.

The newer request calls its updates `edits`. The newer commit has an additional field `region`.
"""

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rebaser.change_set.log import commit_log
from rebaser.change_set.readers import request_reader
from rebaser.cli import main
from rebaser_client.log import commits
from rebaser_core.commit import Commit
from rebaser_core.encoding.envelope import Body, MessageRegistry, MessageType
from rebaser_core.encoding.payload import malformed
from rebaser_core.limits import COMMIT_LIMITS, Limits
from rebaser_core.messages.commit import COMMIT, CommitV3, check_is_commit
from rebaser_core.messages.headers.sweep import sweep_headers
from rebaser_core.messages.request import REQUEST, EnqueueUpdatesRequest, ExpectV4, RequestV4, RevertV4
from rebaser_core.messages.response import RESPONSE


class RequestV5(Body):
    id: str
    workspace_id: str
    change_set_id: str
    edits: list[Any] | None = None
    updates_address: str | None = None
    from_change_set_id: str | None = None
    recompute: dict[str, Any] | None = None
    author: str = ""
    message: str = ""
    expect: ExpectV4 | None = None
    revert: RevertV4 | None = None


class CommitV4(CommitV3):
    region: str


def upgrade_request(old: RequestV4) -> RequestV5:
    fields = {name: getattr(old, name) for name in RequestV4.model_fields}
    return RequestV5.model_construct(edits=fields.pop("updates"), **fields)


def read_request(body: RequestV5, limits: Limits, version: int) -> EnqueueUpdatesRequest:
    fields = {name: getattr(body, name) for name in RequestV5.model_fields}
    return REQUEST.read(RequestV4.model_construct(updates=fields.pop("edits"), **fields), limits, version)


def write_request(request: EnqueueUpdatesRequest, version: int) -> dict[str, Any]:
    wire = REQUEST.write(request, min(version, 4))
    if version > 4 and "updates" in wire:
        wire["edits"] = wire.pop("updates")
    return wire


def upgrade_commit(old: CommitV3) -> CommitV4:
    return CommitV4.model_construct(region="", **{name: getattr(old, name) for name in CommitV3.model_fields})


def write_commit(commit: Commit, version: int) -> dict[str, Any]:
    return COMMIT.write(commit, min(version, 3)) | ({"region": "here"} if version > 3 else {})


NEWER = MessageRegistry(
    (
        MessageType(
            REQUEST.name,
            EnqueueUpdatesRequest,
            (*REQUEST.bodies, RequestV5),
            (*REQUEST.upgrades, upgrade_request),
            read_request,
            write_request,
        ),
        RESPONSE,
        MessageType(
            COMMIT.name,
            Commit,
            (*COMMIT.bodies, CommitV4),
            (*COMMIT.upgrades, upgrade_commit),
            COMMIT.read,
            write_commit,
        ),
    )
)


def encode_commit(commit: Commit) -> tuple[dict[str, str], bytes]:
    headers, payload = NEWER.encode(commit)
    return headers | sweep_headers(commit), payload


def decode_commit(
    headers: Mapping[str, str] | None,
    payload: bytes,
    limits: Limits = COMMIT_LIMITS,
    *,
    sequence: int = 0,
    history: bool = True,
) -> Commit:
    check_is_commit(headers)
    return replace(NEWER.decode(headers, payload, limits, Commit, None if history else "before"), sequence=sequence)


def check_commit(commit: Commit, headers: Mapping[str, str], payload: bytes) -> None:
    meant = commit if commit.delta_blob is None else replace(commit, delta=())
    meant = meant if meant.before_blob is None else replace(meant, before=())
    if decode_commit(headers, payload) != meant:
        raise malformed("it reads back as another commit")


if __name__ == "__main__":
    request_reader.decode = NEWER.decode  # type: ignore[attr-defined]
    commit_log.encode_commit = encode_commit  # type: ignore[assignment, attr-defined]
    commit_log.check_commit = check_commit  # type: ignore[attr-defined]
    commit_log.decode_commit = commits.decode_commit = decode_commit  # type: ignore[attr-defined]
    sys.exit(main())  # type: ignore[func-returns-value]
