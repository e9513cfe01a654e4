"""Reorders a packet into phases: long stretches of numbers for compiled code, and batches of everything else.

A "Python node" is a node that compiled code cannot compute: it has no program, or it has text among its inputs. Odd
phases contain the Python nodes, even phases all other nodes. Phase 0 contains the nodes that depend on no Python node,
phase 1 the Python nodes that depend on no other Python node, phase 2 the other nodes that depend on phase 1, and so on.
So even a long chain of numbers is one phase, and all texts that are computed from the values of that chain are one
batch. Nodes of the same odd phase do not depend on each other.

Invariant: inputs come before dependents, as in the order of the packet. Reordering therefore never changes a result.
"""

# ruff: noqa: PLR0917, PLR1714, SIM109 - compiled code takes each array as a parameter, and does not use tuples

from typing import Any

from rebaser.dvu.wire.column import DIGEST, OTHER, UNKNOWN

BY_PYTHON, TEXT = 1, 2  # flags of a template: Python computes its nodes, or its results are text


def sort_into_phases(
    base: int,
    template: Any,
    starts: Any,
    refs: Any,
    kinds: Any,
    flags: Any,
    phase: Any,
    text: Any,
    begin: Any,
    order: Any,
) -> int:
    """Write the nodes into `order`, phase after phase; within a phase, they keep the order of the packet. Return the
    number of phases. Phase `i` is `order[begin[i]:begin[i + 1]]`.

    `template` has the template of each node, and `flags` the flags of each template. `base`, `starts`, `refs` and
    `kinds` have the same meaning as in `rebaser.dvu.worker.evaluator.Evaluator`. `phase` and `text` are temporary
    storage, with an item for each node. Before the call, `begin` is all 0; it has two more items than twice the number
    of nodes.

    If a node was never computed, the function guesses whether its value is text. A wrong guess only costs time.
    """
    last = 0
    count = len(template)
    for node in range(count):
        number = 0
        textual = False
        for edge in range(starts[node], starts[node + 1]):
            ref = refs[edge]
            if ref >= base:
                other = phase[ref - base]
                number = max(number, other + (other & 1))
                textual = textual or text[ref - base] != 0
            else:
                textual = textual or kinds[ref] == OTHER
        flag = flags[template[node]]
        by_python = textual or (flag & BY_PYTHON) != 0
        if by_python:
            number += 1
        phase[node] = number
        last = max(last, number)
        old = kinds[base + node]
        text[node] = old == OTHER or old == DIGEST or (old == UNKNOWN and by_python and (flag & TEXT) != 0)
        begin[number + 1] += 1
    for index in range(last + 1):
        begin[index + 1] += begin[index]
    for node in range(count):
        order[begin[phase[node]]] = node
        begin[phase[node]] += 1
    for index in range(last + 1, 0, -1):
        begin[index] = begin[index - 1]
    begin[0] = 0
    return last + 1
