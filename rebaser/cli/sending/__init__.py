"""Reads and sends the edits of `rebaser enqueue` and `rebaser recompute`.

`edits` and `formulas` parse options. `source` reads files, `jsonl` and `json_block` parse their lines, and `batches`
collects the updates. `sender` sends requests, and `outcome` describes the result. Only `rebaser.cli.commands` imports
this package. The top-level imports of its modules are limited to the standard library, msgspec, `rebaser_core` and
`rebaser.cli`.
"""
