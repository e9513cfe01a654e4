"""Plans an update, on the owner: finds the values that the roots reach, divides them into packets, and determines which
values the results change.

Only `rebaser.dvu.update`, benchmarks, and `rebaser.dvu.spark` (which loads compiled loops in the background) import
this package. This package imports `rebaser_core`, `rebaser.dvu.wire`, `functions`, `compiled` and, from `worker`, the
limit on the inputs of a value (`warm_up` also evaluates a packet). Planning reads a view, and does no I/O except
loading compiled code.

    planner        chooses between the two ways to plan
    packet_plan    packets of the affected subgraph, in waves
    full_plan      one pass over a graph whose order workers keep
    layout         the order of the whole graph, cached
    subgraph       what the roots reach, in topological order
    patterns patterns among inputs, replaced by the values that they match
    inputs         constants and stored values that go into a packet
    loops          loops over arrays, interpreted or compiled
    packing_loops  the loops that cut a graph into packets
    loop_loader    chooses between interpreted and compiled loops
    warm_up compiles all code ahead of its first use
"""
