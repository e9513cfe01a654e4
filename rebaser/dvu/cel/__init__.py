"""Evaluates formulas in the Common Expression Language.

The function `cel` uses this package, and so does `rebaser.dvu.compiled`, which translates formulas to its own
instructions. This package imports `rebaser_core.cel`, which parses and checks formulas, and `rebaser.dvu.wire`, which
estimates the sizes of values.
"""
