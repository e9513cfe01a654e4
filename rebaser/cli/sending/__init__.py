"""Reads and sends the edits of `rebaser enqueue` and `rebaser recompute`.

`edits` and `formulas` parse options, `source` and `jsonl` read files, `sender` sends requests, and `outcome` describes
the result. Only `rebaser.cli.commands` imports this package. At the top, its modules import nothing but the standard
library, `rebaser_core` and `rebaser.cli`.
"""
