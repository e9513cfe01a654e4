"""Encodes and decodes messages: payloads in CBOR or JSON (`payload`), and the versioned envelope around them
(`envelope`).

`rebaser_core.messages` uses this package to define the messages. Clients and servers import the header names from this
package. All bytes from outside the process are decoded here. This package imports only root modules of `rebaser_core`.
"""
