"""Loops over arrays that cut a graph into packets. See `rebaser.dvu.planning.loops` for the form of a graph and the
rules.

Both modules are compiled in the same way; `rebaser.dvu.planning.loop_loader` offers their functions together.
"""

# ruff: noqa: PLR0912, PLR0915, PLR0917, C901 - smaller functions would make the compiled loops slower
# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False


def _work_of(positions, start, end, ptr):
    """The number of nodes and edges of `positions[start:end]`."""
    work = 0
    for index in range(start, end):
        work += 1 + ptr[positions[index] + 1] - ptr[positions[index]]
    return work


def _measure_inputs(node, packet, ptr, idx, where, constant_weight, weight, constant_seen, seen, counted):
    """Whether all inputs of `node` are settled or in `packet`, whether one of them is in `packet`, and how many bytes
    the node adds to it.

    A settled input counts once in a packet: `constant_seen` and `seen` have the number of the last packet it counted
    in. The inputs counted for this node are written into `counted`; their number is returned last.
    """
    inside, size, fresh = False, 16, 0
    for edge in range(ptr[node], ptr[node + 1]):
        source = idx[edge]
        size += 4
        if source < 0:
            if constant_seen[-source - 1] != packet:
                constant_seen[-source - 1] = packet
                size += constant_weight[-source - 1]
                counted[fresh] = source
                fresh += 1
        elif where[source] == 0:
            if seen[source] != packet:
                seen[source] = packet
                size += weight[source]
                counted[fresh] = source
                fresh += 1
        elif where[source] == packet:
            inside = True
        else:
            return False, inside, size, fresh
    return True, inside, size, fresh


def _forget_inputs(counted, fresh, constant_seen, seen):
    """Undo what `_measure_inputs` counted for a node that does not go into the packet."""
    for index in range(fresh):
        source = counted[index]
        if source < 0:
            constant_seen[-source - 1] = 0
        else:
            seen[source] = 0


def _take_back(taken, start, end, where):
    """Let the positions `taken[start:end]` wait again."""
    for index in range(start, end):
        where[taken[index]] = -1


def fill(islands, graph, weights, limits, packing, out):
    """Fill the packets of a wave, numbered from `first` on, with the positions that wait for no packet of the wave.

    A packet holds up to `budget` bytes. It is full once it has `enough` nodes and edges, unless at most `small_rest` of
    the `left` nodes and edges remain. Positions whose inputs are settled and take more than `largest` bytes become
    `oversized`; if there are any, the other results do not count. With `one_only`, the function gives up if one packet
    is not enough.

    Returns how many packets, islands left and oversized positions there are, and whether the function gave up.
    """
    parts, begin = islands  # island i is parts[begin[i]:begin[i + 1]], in topological order
    ptr, idx, dirty, template = graph
    constant_weight, weight, template_weight = weights  # in bytes
    first, budget, largest, enough, left, small_rest, one_only = limits
    # By position: its packet (0 settled, -1 waiting) and its index there. By constant, position, template: the last
    # packet that counted it. All of it is kept from wave to wave.
    where, index_in_packet, constant_seen, seen, template_seen = packing
    # The positions of all packets, and where each packet ends; islands of what is left, and where each begins.
    taken, ends, later, later_begin, oversized, counted = out
    packet, packet_size, nodes, work = first, 0, 0, 0
    filled = deferred = islands_left = oversized_count = 0
    for island in range(len(begin) - 1):
        if work >= enough and left > small_rest:
            ends[packet - first] = filled
            packet, packet_size, nodes, work = packet + 1, 0, 0, 0
        left -= _work_of(parts, begin[island], begin[island + 1], ptr)
        filled_before, deferred_before, shares_packet = filled, deferred, nodes > 0
        index = begin[island]
        while index < begin[island + 1]:
            node = parts[index]
            index += 1
            if where[node] == 0:
                continue
            ready, inside, size, fresh = _measure_inputs(
                node, packet, ptr, idx, where, constant_weight, weight, constant_seen, seen, counted
            )
            if ready and (inside or dirty[node]) and size <= largest and (not nodes or packet_size + size <= budget):
                if template_seen[template[node]] != packet:
                    template_seen[template[node]] = packet
                    packet_size += template_weight[template[node]]
                where[node], index_in_packet[node], taken[filled] = packet, nodes, node
                filled, nodes, packet_size = filled + 1, nodes + 1, packet_size + size
                work += 1 + ptr[node + 1] - ptr[node]
                continue
            _forget_inputs(counted, fresh, constant_seen, seen)
            # If it is too large, wait for inputs that this packet computes: one may be a fault, which takes precedence.
            if not ready or (size > largest and inside):
                later[deferred] = node
                deferred += 1
            elif not inside and not dirty[node]:
                where[node] = 0  # none of its inputs changed
            elif size > largest:
                oversized[oversized_count] = node
                oversized_count += 1
            else:  # the packet is full
                if one_only:
                    ends[packet - first] = filled
                    return packet - first + 1, islands_left, oversized_count, True
                index -= 1
                if shares_packet:  # the island leaves the packet to those before it, and begins one of its own
                    _take_back(taken, filled_before, filled, where)
                    filled, deferred, index, shares_packet = filled_before, deferred_before, begin[island], False
                ends[packet - first] = filled
                packet, packet_size, nodes, work = packet + 1, 0, 0, 0
        if deferred > later_begin[islands_left]:
            islands_left += 1
            later_begin[islands_left] = deferred
    if nodes:
        ends[packet - first] = filled
        packet += 1
    return packet - first, islands_left, oversized_count, False


def packet_inputs(nodes, ptr, idx, where, packet, index_in_packet, constant_slot, slot, refs, constants):
    """Write the inputs of the `nodes` of a packet into `refs`, as slots, and its constants into `constants`. Returns
    how many constants there are.

    The constants of a packet are those inputs of its nodes that it does not compute: a constant `k` of the graph,
    written as `-k - 1`, or the position of a node outside the packet. `constant_slot` and `slot` are all -1, before and
    after.
    """
    inside = 1 << 30  # added to indexes in the packet, as the number of constants is not known yet
    filled = known = 0
    for node in nodes:
        for edge in range(ptr[node], ptr[node + 1]):
            source = idx[edge]
            if source >= 0 and where[source] == packet:
                refs[filled] = inside + index_in_packet[source]
            elif source < 0:
                if constant_slot[-source - 1] < 0:
                    constant_slot[-source - 1] = known
                    constants[known] = source
                    known += 1
                refs[filled] = constant_slot[-source - 1]
            else:
                if slot[source] < 0:
                    slot[source] = known
                    constants[known] = source
                    known += 1
                refs[filled] = slot[source]
            filled += 1
    for edge in range(filled):
        if refs[edge] >= inside:
            refs[edge] += known - inside
    for source in constants[:known]:
        if source < 0:
            constant_slot[-source - 1] = -1
        else:
            slot[source] = -1
    return known
