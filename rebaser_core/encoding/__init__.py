"""Messages as bytes: payloads in CBOR or JSON (`payload`), and the versioned envelope around them (`envelope`).

Used by `rebaser_core.messages`, which defines the messages, and by clients and servers for header names. Everything
that comes from outside is decoded here. Imports only root modules of `rebaser_core`.
"""
