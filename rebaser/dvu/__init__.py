"""The dependent values update: plan, packets, Spark, results.

    run       one update, from a view to what changed
    plan      what to compute, cut into packets          graph, filling: its parts
    packet    what travels, and comes back
    engine    packets of all callers as Spark jobs       keeper, session, jvm, guard: its parts
    evaluate  the worker's side
    functions what derives values; cel: formulas
    faults    the words for what cannot be computed

Invariant: a failing value is a value in state `error`; only what is nobody's value is a `DvuError`.
"""
