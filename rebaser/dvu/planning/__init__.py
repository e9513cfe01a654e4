"""Plans an update on the owner: finds the values that depend on the roots, divides them into packets, and determines
which values the results change.

Only `rebaser.dvu.update`, the benchmarks, and `rebaser.dvu.spark`, which loads compiled loops in the background, import
this package. This package imports `rebaser_core`, `rebaser.dvu.wire`, `rebaser.dvu.functions` and
`rebaser.dvu.compiled`. From `rebaser.dvu.worker`, it imports the limit on the inputs of a value and, in `warm_up`, the
function that evaluates a packet. Planning reads a view. It does no I/O except to load compiled code.

    planner        chooses between the two kinds of plan
    packet_plan    divides the affected subgraph into packets, in waves
    full_plan      plans one pass over a graph whose structure workers keep
    layout         sorts the whole graph, and caches the order
    subgraph       finds the values that depend on the roots, in topological order
    patterns       replaces patterns among inputs by the values that they match
    inputs         reads the constants and stored values that a packet needs
    loops          contains the loops over arrays
    packing_loops  contains the loops that divide a graph into packets
    loop_loader    chooses between interpreted and compiled loops
    warm_up        compiles all code before its first use
"""
