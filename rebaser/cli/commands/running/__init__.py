"""The commands that start servers, prepare an installation for servers, demonstrate the system, or measure it under
load.

`bench_load` generates the load of `bench`.
"""
