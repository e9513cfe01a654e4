"""Defines the columns of checkpoint parts, and reads and writes the JSON in them. The docstring of
`rebaser_core.checkpoint` explains both."""

import json
from typing import Any

import pyarrow as pa

from rebaser_core.branches.branch import Branch
from rebaser_core.encoding.payload import JSON, loads, malformed
from rebaser_core.limits import COMMIT_LIMITS
from rebaser_core.messages.commit_fields.origin import read_status
from rebaser_core.state.templates import DefinitionTemplate

FORMAT = "rebaser-checkpoint"
VERSION = 3
UNTRACKED_VERSION = 2  # the version without the column `edited`

STATES = pa.array(["absent", "ok", "stale", "error", "unset"])  # in the order of the codes in `state.kinds`

_FIELDS = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        ("state", pa.dictionary(pa.int8(), pa.string())),
        ("integer", pa.int64()),
        ("double", pa.float64()),
        ("boolean", pa.bool_()),
        ("text", pa.large_string()),
        ("json", pa.large_string()),
        ("error_code", pa.string()),
        ("error_message", pa.large_string()),
        ("error_origin", pa.string()),
        ("definition", pa.dictionary(pa.int32(), pa.large_string())),
        ("inputs", pa.list_(pa.int32())),
        ("root", pa.int64()),
    ]
)
SCHEMA = _FIELDS.append(pa.field("edited", pa.int64()))
SCHEMAS = {UNTRACKED_VERSION: _FIELDS, VERSION: SCHEMA}
COLUMNS = {name: place for place, name in enumerate(SCHEMA.names)}

# The keys of metadata: the schema's metadata has the key `PART`; the metadata of batches without rows has the others.
PART, OUTCOMES, DIGESTS, HEAD = b"rebaser", b"outcomes", b"digests", b"head"


def write_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def read_json(text: bytes) -> Any:
    """Return the JSON value in `text`. Raise `UnprocessableError` if `text` is not valid JSON."""
    return loads(JSON, text, COMMIT_LIMITS)


def write_template(template: DefinitionTemplate) -> str:
    """Return a template as JSON text."""
    inputs = {name: None if count < 0 else count for name, count in template.inputs}
    return write_json({"function": template.function, "inputs": inputs, "params": dict(template.params)})


def read_template(text: str) -> DefinitionTemplate:
    """Decode a template that `write_template` has encoded as `text`. Raise `UnprocessableError` if `text` is not
    valid."""
    raw = read_json(text.encode())
    if type(raw) is not dict or raw.keys() != {"function", "inputs", "params"}:
        raise malformed("a definition in the checkpoint is not a map with the keys 'function', 'inputs' and 'params'")
    function, counts, params = raw["function"], raw["inputs"], raw["params"]
    if type(function) is not str or type(counts) is not dict or type(params) is not dict:
        raise malformed("a definition in the checkpoint has a function, inputs or params of the wrong type")
    inputs = tuple((name, -1 if count is None else natural(count)) for name, count in counts.items())
    if sum(abs(count) for _, count in inputs) > COMMIT_LIMITS.max_inputs:
        raise malformed(f"a definition in the checkpoint has more than {COMMIT_LIMITS.max_inputs} inputs")
    return DefinitionTemplate(function, inputs, params)


def natural(item: object) -> int:
    if type(item) is not int or item < 0:
        raise malformed("a field of the checkpoint is not a natural number")
    return item


def text(item: object) -> str:
    if type(item) is not str:
        raise malformed("a field of the checkpoint is not text")
    return item


def listed(item: object, exactly: int | None = None) -> list[Any]:
    if type(item) is not list or (exactly is not None and len(item) != exactly):
        raise malformed("a field of the checkpoint is not a list of the expected length")
    return item


def write_branch(branch: Branch) -> list[Any]:
    """Return the state of a branch for the head of a checkpoint, without the branch's changes, which are in a separate
    blob."""
    origin, target = [branch.origin, branch.origin_sequence], [branch.target, branch.base]
    follows = [True] if branch.follows else []
    return [branch.birth, origin, target, branch.status.value, branch.own, *follows]


def read_branch(raw: object, edited: int) -> Branch | None:
    """Decode a branch that `write_branch` has encoded as `raw`, or return None if `raw` is None.

    `edited` is the log sequence of the newest commit with edits. It replaces `Branch.own` in checkpoints of releases
    that could not yet rebase branches, because these did not store `Branch.own`. Raise `UnprocessableError` if `raw` is
    malformed, and `UnsupportedVersion` if the status is unknown.
    """
    if raw is None:
        return None
    birth, origin, target, status, *rest = listed(raw)
    (parent, sequence), (name, base) = listed(origin, 2), listed(target, 2)
    about = (natural(sequence), text(name), natural(base), read_status(text(status)))
    own, follows = listed([*rest, *(edited, None)[len(rest) :]], 2)
    return Branch(natural(birth), text(parent), *about, own=natural(own), follows=read_flag(follows))


def read_taken(raw: object) -> dict[str, int]:
    """Return `raw` as a map from the name of each applied branch to the log sequence of the commit that applied it.

    If `raw` is None, return an empty map. Raise `UnprocessableError` if it is anything but a valid map.
    """
    if raw is None:
        return {}
    if type(raw) is not dict:
        raise malformed("the applied branches of a checkpoint are not a map")
    return {text(name): natural(sequence) for name, sequence in raw.items()}


def read_flag(raw: object) -> bool:
    """Return true if the field `raw` is true, and false if it is missing (None). Raise `UnprocessableError` for any
    other content."""
    if raw is not None and raw is not True:  # not 1, which equals true
        raise malformed("a field of the checkpoint is neither true nor missing")
    return raw is True
