"""Translates functions of numbers, and formulas, into programs, which compiled code runs on executors.

`rebaser.dvu.worker` runs programs. `rebaser.dvu.planning` asks whether a definition has a program, and compiles its own
loops with this package. This package imports `rebaser_core`, `rebaser.dvu.wire`, `cel` and `functions`; Numba is
imported only where compiled code is loaded.

    instructions the instructions of compiled code, and programs made of them translate      definitions as programs
    formulas       formulas as programs linker         combines the programs of a packet for the kernel phases
    an order of a packet that groups nodes of the same kind loader         loads compiled code, and keeps it on disk
    kernel/        the compiled code
"""
