"""Finds, for garbage collection, every blob address in the stored messages (`references`).

The server, the Spark data source and the command line use this package. Within Rebaser, it imports `rebaser_core` and,
from `rebaser_client`, `blobs`, `jetstream`, `logs` and `pace`.
"""

from rebaser_client.garbage.references import Reference, ReferenceReader

__all__ = ["Reference", "ReferenceReader"]
