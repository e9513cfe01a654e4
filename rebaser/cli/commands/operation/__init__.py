"""The commands that run servers, and that examine, measure or repair an installation.

`bench_load` does the work of `bench`, and `doctor_installation` that of `doctor` without a change set.
"""
