"""Computes a digest of a request's content. The digest distinguishes a request that was sent again from a different
request with the same id.

Invariant: requests with equal content have equal digests. It does not matter whether they were sent as CBOR or JSON,
whether the updates were in the message or in a blob, or how the keys of maps were ordered.
"""

import hashlib
from collections.abc import Sequence
from typing import Final

from rebaser_core.branches.branch import Action, Apply, Create, Rebase
from rebaser_core.commit import Marking, Reverts
from rebaser_core.updates import Derive, Input, Match, Recompute, Set, Unset, Update
from rebaser_core.values import canonical

SIZE: Final = 8  # bytes; this is enough, because a sender who finds a collision harms only its own requests
_EMPTY = hashlib.blake2b(digest_size=SIZE)  # a copy takes two thirds of the time of a new hash


def digest_of(
    updates: Sequence[Update],
    from_change_set: str | None,
    recompute: Recompute | None,
    expect_at: int | None = None,
    action: Action | None = None,
) -> bytes:
    """Return the digest of a request with this content. The author and the message of a request are not included.

    `action` is set only if the request has no edits.
    """
    digest = _EMPTY.copy()
    digest.update(b"".join(map(_bytes_of, updates)))
    if from_change_set is None and recompute is None and expect_at is None and action is None:  # true of most requests
        return digest.digest()
    parts: list[bytes] = []
    if from_change_set is not None:
        parts.append(b"from" + canonical(from_change_set))
    if recompute is not None:
        parts.append(b"recompute" + canonical(recompute.to_wire()))
    if expect_at is not None:
        parts.append(b"expect%d;" % expect_at)
    if type(action) is Reverts:
        parts.append(b"revert%d-%d;%b" % (action.first, action.last, canonical(action.request)))
        parts += [] if action.of is None else [b"of" + canonical(action.of)]
    if type(action) is Create:
        manual = [] if action.follows else [False]
        parts.append(b"create" + canonical([action.parent, action.at, action.target, action.closed, *manual]))
    if type(action) is Apply:
        kept = [True] if action.keep else []
        parts.append(b"apply" + canonical([action.source, action.at, action.strict, action.allow_stale, *kept]))
    if type(action) is Rebase:
        parts.append(b"rebase" + canonical([action.upto, action.onto, action.strategy.value, action.settles]))
    if type(action) is Marking:
        status = [] if action.status is None else [action.status.value]
        parts.append(b"mark" + canonical([action.protected, *status]))
    digest.update(b"".join(parts))
    return digest.digest()


def _bytes_of(update: Update) -> bytes:
    """Encode one update. Each part begins with its length, so no encoded update is a prefix of a different one."""
    if type(update) is Derive:
        return _bytes_of_derive(update)
    id_ = update.id.encode()
    if type(update) is Set:
        value = update.value
        return b"set%d:%b%b" % (len(id_), id_, b"i%d;" % value if type(value) is int else canonical(value))
    return (b"unset%d:%b" if type(update) is Unset else b"remove%d:%b") % (len(id_), id_)


def _bytes_of_derive(derive: Derive) -> bytes:
    """Return what `canonical` would return for a list of the id, the function, the inputs as pairs, and the parameters.

    The order of the inputs matters, but the order of the parameters does not. The list itself is never built, because
    that would take most of the time.
    """
    out = [b"derive[4:", _text(derive.id), _text(derive.function), b"[%d:" % len(derive.inputs)]
    for name, source in derive.inputs.items():
        out += (b"[2:", _text(name))
        if isinstance(source, (str, Match)):
            out.append(_input(source))
        else:
            out.append(b"[%d:" % len(source))
            out += [_text(item) if type(item) is str else _input(item) for item in source]
    out.append(canonical(dict(derive.params)) if derive.params else b"{0:")
    return b"".join(out)


def _input(source: Input) -> bytes:
    return _text(source) if isinstance(source, str) else canonical({"match": source.glob})


def _text(text: str) -> bytes:
    """Return what `canonical` would return for a string."""
    raw = text.encode("utf-8", "surrogatepass")
    return b"s%d:%b" % (len(raw), raw)
