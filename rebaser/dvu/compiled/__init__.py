"""Translates numeric functions and formulas into programs, which compiled code runs on executors.

`rebaser.dvu.worker` runs programs. `rebaser.dvu.planning` checks whether a definition has a program. It also uses the
loader of this package to compile its own loops. This package imports `rebaser_core`, `rebaser.dvu.wire`,
`rebaser.dvu.cel` and `rebaser.dvu.functions`. It imports Numba only where compiled code is loaded.

    instructions   defines the instructions of compiled code, and programs
    translate      translates definitions into programs
    formulas       translates formulas into programs
    linker         combines the programs of a packet for the kernel
    phases         reorders a packet, so that nodes of the same kind are together
    loader         loads compiled code, and keeps it on disk
    kernel/        contains the code that Numba compiles
"""
