"""Evaluates formulas in the Common Expression Language (CEL).

The function `cel` uses this package. `rebaser.dvu.compiled`, which translates formulas into its own instructions, uses
it too. This package imports `rebaser_core.cel`, which parses and checks formulas, and `rebaser.dvu.wire`, which
estimates the sizes of values.
"""
