"""Plans an update on the owner. It finds the values that the roots reach, divides them into packets, and determines
which values the results change.

Three packages import this package: `rebaser.dvu.update`, the benchmarks, and `rebaser.dvu.spark`, which loads compiled
loops in the background. This package imports `rebaser_core`, `rebaser.dvu.wire`, `rebaser.dvu.functions` and
`rebaser.dvu.compiled`. From `rebaser.dvu.worker`, it imports the limit on the inputs of a value, and `warm_up` imports
what evaluates a packet. Planning reads a view. It does no I/O except to load compiled code.

    planner        chooses between the two ways to plan
    packet_plan    divides the affected subgraph into packets, in waves
    full_plan      plans one pass over a graph whose structure workers keep
    layout         sorts the whole graph, and caches the order
    subgraph       finds what the roots reach, in topological order
    patterns       replaces patterns among inputs by the values that they match
    inputs         reads the constants and stored values that a packet needs
    loops          contains the loops over arrays
    packing_loops  contains the loops that divide a graph into packets
    loop_loader    chooses between interpreted and compiled loops
    warm_up        compiles all code before its first use
"""
