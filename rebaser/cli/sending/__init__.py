"""How `rebaser enqueue` and `rebaser recompute` read edits and send them.

`edits` and `formulas` parse options, `source` and `jsonl` read files, `sender` sends requests, and `outcome` describes
the result. Only `rebaser.cli.commands` imports this package. At the top, its modules import nothing but the standard
library, `rebaser_core` and `rebaser.cli`.
"""
