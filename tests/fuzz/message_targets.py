"""Fuzz targets for messages: a header block, then the payload."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace

import cbor2

from rebaser.change_set.replies import reply, response
from rebaser_client.nats.header_lines import encode_headers
from rebaser_client.nats.messages import parse_headers
from rebaser_core.commit import Applied, Commit, Kind, Outcome
from rebaser_core.decisions.decide import DecidedBatch, decide
from rebaser_core.decisions.queued_request import QueuedRequest
from rebaser_core.errors import UnprocessableError, UnsupportedVersion
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.messages import (
    EnqueueUpdatesRequest,
    EnqueueUpdatesResponse,
    decode,
    decode_commit,
    encode,
    encode_commit,
    read_sweep_headers,
)
from rebaser_core.messages.content_digest import digest_of
from rebaser_core.messages.dead_letter import dead_headers
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.values import INT64_MAX
from tests.fuzz.actions import decided_everywhere
from tests.fuzz.mutate import Mutator, as_cbor
from tests.fuzz.refusals import refused
from tests.support.checkpoints import restored
from tests.support.examples import examples

KEY = ChangeSetKey("ws", "cs")


def framed(headers: Mapping[str, str], payload: bytes) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"NATS/1.0\r\n{lines}\r\n".encode(errors="replace") + payload


def unframed(data: bytes) -> tuple[dict[str, str] | None, bytes]:
    block, end, payload = data.partition(b"\r\n\r\n")
    return (parse_headers(block + end), payload) if end else (None, data)


def messages(kind: str) -> list[tuple[dict[str, str], bytes]]:
    """Return headers and payload of the golden files of messages of type `kind`."""
    found = [one for one in examples() if one.name.startswith(f"{kind}.") and one.headers_path.exists()]
    return [(json.loads(one.headers_path.read_bytes()), one.path.read_bytes()) for one in found]


def make_message(kind: str) -> Callable[[Mutator], bytes]:
    valid = messages(kind)
    payloads = [payload for _, payload in valid]

    def make(mutator: Mutator) -> bytes:
        headers, payload = mutator.chance.choice(valid)
        as_json = headers["X-CONTENT-TYPE"] == "application/json"
        if mutator.often(0.2):
            name = mutator.chance.choice(list(headers))
            headers = headers | {name: mutator.text(headers[name]).replace("\r\n\r\n", "")}
        if mutator.often(0.6):
            payload = damaged_tree(mutator, payload, as_json=as_json)
        if mutator.often(0.4):
            payload = mutator.damaged(payload, payloads)
        return framed(headers, payload) if mutator.often(0.97) else mutator.damaged(framed(headers, payload), payloads)

    return make


def damaged_tree(mutator: Mutator, payload: bytes, *, as_json: bool) -> bytes:
    value = mutator.tree(json.loads(payload) if as_json else cbor2.loads(payload))
    if not as_json:
        return as_cbor(value)
    return json.dumps(value, default=str, skipkeys=True, ensure_ascii=mutator.often(0.5)).encode(errors="surrogatepass")


def check_request(data: bytes) -> None:
    """Pass a request through all steps of an owner: whatever it is, it is decided, logged and answered, or put into the
    dead letters."""
    headers, payload = unframed(data)
    try:
        request = decode(headers, payload, expect=EnqueueUpdatesRequest)
    except UnprocessableError as refusal:
        check_edits(headers, QueuedRequest(1, RequestId("@1"), error=refusal))
        return
    except UnsupportedVersion:
        return
    updates, action = request.updates or (), request.action
    content = (request.from_change_set_id, request.recompute, request.expect_at)
    about = {"author": request.author, "message": request.message, "expect_at": request.expect_at}
    digest = digest_of(updates, *content, action)
    queued = QueuedRequest(1, request.id, updates, recompute=request.recompute, digest=digest, **about)  # type: ignore[arg-type]
    if action is None:
        check_edits(headers, queued)
        return
    for decided in decided_everywhere(replace(queued, action=action)):
        check_answers(headers, decided)


def check_edits(headers: dict[str, str] | None, request: QueuedRequest) -> None:
    state = ChangeSetState()
    decided = decide(state, Applied("stream", 0), [request])
    commit = Commit(
        "id",
        0,
        Kind.REBASE,
        1,
        "owner",
        decided.applied,
        0,
        requests=decided.decisions,
        delta=decided.delta,
        recompute=decided.recompute,
        authors=decided.authors,
    )
    assert same_commit(decode_commit(*encode_commit(commit)), commit)
    state.fold(1, commit)
    again = restored(state)
    assert again.cells.keys() == state.cells.keys()
    check_answers(headers, decided)


def check_answers(headers: dict[str, str] | None, decided: DecidedBatch) -> None:
    """Check that whoever sent the request can read its reply, and that a dead letter can be sent."""
    for decision, _ in decided.answers:
        answer = response(headers, KEY, decision, 1)
        assert decode(*reply(headers, KEY, decision, 1), expect=EnqueueUpdatesResponse) == answer
        if decision.outcome is Outcome.DEAD:
            encode_headers(
                dead_headers(headers, decision, key=KEY, subject="rebaser.requests.ws.cs", server="s", at_ms=1)
            )


def same_commit(one: Commit, other: Commit) -> bool:
    return all(
        repr(getattr(one, name)) == repr(getattr(other, name)) for name in ("requests", "delta", "recompute", "authors")
    )


def check_reply(data: bytes) -> None:
    headers, payload = unframed(data)
    found = refused(lambda: decode(headers, payload, expect=EnqueueUpdatesResponse))
    if isinstance(found, EnqueueUpdatesResponse):
        assert decode(*encode(found)) == found


def check_commit(data: bytes) -> None:
    headers, payload = unframed(data)
    refused(lambda: read_sweep_headers(headers))
    commit = refused(lambda: decode_commit(headers, payload))
    if isinstance(commit, Commit):
        state = ChangeSetState()
        state.last = commit.previous
        refused(lambda: state.fold(min(commit.previous + 1, INT64_MAX), commit))
        state.values()
