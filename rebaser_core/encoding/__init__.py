"""Messages as bytes: payloads in CBOR or JSON (`payload`), and the versioned envelope around them (`envelope`).

`rebaser_core.messages`, which defines the messages, uses this package; clients and servers take header names from it.
All bytes from outside the process are decoded here. It imports only root modules of `rebaser_core`.
"""
