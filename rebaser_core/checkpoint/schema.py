"""The columns of a part, and its JSON. `rebaser_core.checkpoint` explains the meaning of both."""

import json
from typing import Any

import pyarrow as pa

from rebaser_core.branches.branch import Branch
from rebaser_core.encoding.payload import JSON, loads, malformed
from rebaser_core.limits import COMMIT_LIMITS
from rebaser_core.messages.commit_fields.origin import read_status
from rebaser_core.state.templates import Template

FORMAT = "rebaser-checkpoint"
VERSION = 3
UNTRACKED_VERSION = 2  # without the column `edited`

STATES = pa.array(["absent", "ok", "stale", "error", "unset"])  # in the order of `rebaser_core.state.kinds`

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

# Keys of metadata: `PART` is in the metadata of the schema, the others are in that of batches without rows.
PART, OUTCOMES, DIGESTS, HEAD = b"rebaser", b"outcomes", b"digests", b"head"


def write_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def read_json(text: bytes) -> Any:
    """Return the JSON value in `text`; raises `UnprocessableError`."""
    return loads(JSON, text, COMMIT_LIMITS)


def write_template(template: Template) -> str:
    """Return the JSON of a template."""
    inputs = {name: None if count < 0 else count for name, count in template.inputs}
    return write_json({"function": template.function, "inputs": inputs, "params": dict(template.params)})


def read_template(text: str) -> Template:
    """Decode the output of `write_template`; raises `UnprocessableError`."""
    raw = read_json(text.encode())
    if type(raw) is not dict or raw.keys() != {"function", "inputs", "params"}:
        raise malformed("a definition must be a map of function, inputs and params")
    function, counts, params = raw["function"], raw["inputs"], raw["params"]
    if type(function) is not str or type(counts) is not dict or type(params) is not dict:
        raise malformed("the function of a definition must be text, and its inputs and params must be maps")
    inputs = tuple((name, -1 if count is None else natural(count)) for name, count in counts.items())
    if sum(abs(count) for _, count in inputs) > COMMIT_LIMITS.max_inputs:
        raise malformed(f"a definition has more than {COMMIT_LIMITS.max_inputs} inputs")
    return Template(function, inputs, params)


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
    """Return the JSON of a branch without its changes, which have a blob of their own."""
    origin, target = [branch.origin, branch.origin_sequence], [branch.target, branch.base]
    follows = [True] if branch.follows else []
    return [branch.birth, origin, target, branch.status.value, branch.own, *follows]


def read_branch(raw: object, edited: int) -> Branch | None:
    """Decode the output of `write_branch`; raises `UnprocessableError`, or `UnsupportedVersion` for an unknown status.

    `edited` is the newest commit with edits. It is also `own` in checkpoints written by servers that could not replay.
    """
    if raw is None:
        return None
    birth, origin, target, status, *rest = listed(raw)
    (parent, sequence), (name, base) = listed(origin, 2), listed(target, 2)
    about = (natural(sequence), text(name), natural(base), read_status(text(status)))
    own, follows = listed([*rest, *(edited, None)[len(rest) :]], 2)
    return Branch(natural(birth), text(parent), *about, own=natural(own), follows=read_flag(follows))


def read_taken(raw: object) -> dict[str, int]:
    """Read a map from the names of applied branches to the log sequences of the commits that applied them. Raises
    `UnprocessableError`."""
    if raw is None:
        return {}
    if type(raw) is not dict:
        raise malformed("the applied branches of a checkpoint are not a map")
    return {text(name): natural(sequence) for name, sequence in raw.items()}


def read_flag(raw: object) -> bool:
    """Return a field that is true or missing; raises `UnprocessableError`."""
    if raw not in (None, True):
        raise malformed("a field of the checkpoint is neither true nor missing")
    return raw is True
