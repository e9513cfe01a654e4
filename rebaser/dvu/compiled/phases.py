"""An order of a packet in which what is alike comes together: numbers in long stretches for compiled code, the rest in
groups that need nothing from each other.

Invariant: inputs come before dependents, as in the packet's own order; so results are the same, to the byte.

A node stands *aside* if it is not for compiled code: it has no program, or text comes into it. Phase 0 is what needs
none of those, phase 1 those that need no other, phase 2 what needs these, and so on: odd ones stand aside. So a chain
of numbers is one stretch, however long, and texts that hang on its links are one group.
"""

# ruff: noqa: PLR0917, PLR1714, SIM109 - compiled code: arrays one by one, and no tuples

from typing import Any

from rebaser.dvu.wire.column import DIGEST, OTHER, UNKNOWN

ASIDE, TEXT = 1, 2  # flags of a shape: it has no program; what it gives is text if it stands aside


def sort_into_phases(
    base: int, shape: Any, starts: Any, refs: Any, kinds: Any, flags: Any, phase: Any, text: Any, begin: Any, order: Any
) -> int:
    """Sort nodes into `order`, phase after phase, each in the order of the packet; phase i begins at `begin[i]`.

    `phase` and `text` are room for a number and a truth by node; `begin`, all 0, needs two more items than twice the
    nodes there are. What is text is a guess where a node was never computed: it may cost time and nothing else.
    Returns how many phases there are.
    """
    last = 0
    count = len(shape)
    for node in range(count):
        after = 0
        textual = False
        for at in range(starts[node], starts[node + 1]):
            ref = refs[at]
            if ref >= base:
                other = phase[ref - base]
                after = max(after, other + (other & 1))
                textual = textual or text[ref - base] != 0
            else:
                textual = textual or kinds[ref] == OTHER
        flag = flags[shape[node]]
        aside = textual or (flag & ASIDE) != 0
        if aside:
            after += 1
        phase[node] = after
        last = max(last, after)
        old = kinds[base + node]
        text[node] = old == OTHER or old == DIGEST or (old == UNKNOWN and aside and (flag & TEXT) != 0)
        begin[after + 1] += 1
    for one in range(last + 1):
        begin[one + 1] += begin[one]
    for node in range(count):
        order[begin[phase[node]]] = node
        begin[phase[node]] += 1
    for one in range(last + 1, 0, -1):
        begin[one] = begin[one - 1]
    begin[0] = 0
    return last + 1
