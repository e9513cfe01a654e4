"""Reads the Arrow files of checkpoints, batch by batch.

Invariant: every batch is validated before it is returned, because other programs may have written the bytes.
"""

from typing import Any

import pyarrow as pa

from rebaser_core.checkpoint import schema
from rebaser_core.checkpoint.schema import COLUMNS, SCHEMAS, natural, read_json, text
from rebaser_core.encoding.payload import malformed
from rebaser_core.errors import UnsupportedVersion


class PartFile:
    """An Arrow IPC file that contains a part of a checkpoint, or a piece of a large part."""

    def __init__(self, data: bytes) -> None:
        self.reader = _open(data)
        self._data = data
        self._ids: Any = None  # a reader that reads only the column `id`; opened when it is first needed
        about = read_json((self.reader.schema.metadata or {}).get(schema.PART, b"null"))
        if type(about) is not dict or about.get("format") != schema.FORMAT:
            raise malformed("the blob is not a checkpoint")
        self.version = natural(about.get("version"))
        if self.version > schema.VERSION:
            told = f"the checkpoint has format {self.version}: read it with a newer release of Rebaser"
            raise UnsupportedVersion(told)
        if self.version not in SCHEMAS or not self.reader.schema.equals(SCHEMAS[self.version]):
            raise malformed(f"the columns of the checkpoint are not those of format {self.version}")
        self.first = natural(about.get("first"))
        self.layer = text(about.get("layer"))

    def batch(self, number: int) -> tuple[pa.RecordBatch, dict[bytes, bytes]]:
        """Return the batch with index `number` and its metadata. Raise a pyarrow error if the batch is invalid."""
        batch, metadata = self.reader.get_batch_with_custom_metadata(number)
        batch.validate(full=True)
        return batch, dict(metadata or {})

    def ids(self, number: int) -> pa.StringArray:
        """Return the ids in the batch with index `number`, without reading its other columns. Raise a pyarrow error if
        the ids are invalid."""
        if self._ids is None:
            self._ids = _open(self._data, included_fields=[COLUMNS["id"]])
        batch = self._ids.get_batch(number)
        batch.validate(full=True)
        return batch.column(0)


def _open(data: bytes, **options: Any) -> Any:
    return pa.ipc.open_file(pa.BufferReader(data), options=pa.ipc.IpcReadOptions(use_threads=False, **options))
