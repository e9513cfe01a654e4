"""What garbage collection reads: `references`, every blob address that a stored message names.

For the server, the data source and the command line. Within Rebaser, this package imports `rebaser_core` and, from
`rebaser_client`, `blobs`, `jetstream` and `logs`.
"""

from rebaser_client.garbage.references import Reference, ReferenceReader

__all__ = ["Reference", "ReferenceReader"]
