"""Evaluates formulas in the Common Expression Language.

For the function `cel` and for compiled code, which translates formulas to its own instructions. It imports
`rebaser_core.cel`, which parses and checks formulas, and the estimate of a value's size from `rebaser.dvu.wire`.
"""
