"""Encodes and decodes messages: payloads in CBOR or JSON (`payload`), and the versioned envelope around them
(`envelope`).

`rebaser_core.messages` defines the messages and uses this package. Clients and servers import the names of headers from
it. All bytes from outside the process are decoded here. This package imports only root modules of `rebaser_core`.
"""
