"""Contains the loops over arrays that divide a graph into packets. `rebaser.dvu.planning.loops` describes the form of a
graph, and the rules for functions that are compiled.

A position is settled once its value is known. `rebaser.dvu.planning.loop_loader` loads the functions of both modules.
"""

# ruff: noqa: PLR0912, PLR0915, PLR0917, C901 - smaller functions would make the compiled loops slower
# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False


def _work_of(positions, start, end, ptr):
    """Return the number of positions in `positions[start:end]`, plus the number of their inputs."""
    work = 0
    for index in range(start, end):
        work += 1 + ptr[positions[index] + 1] - ptr[positions[index]]
    return work


def _measure_inputs(node, packet, ptr, idx, where, constant_weight, weight, constant_seen, seen, counted):
    """Measure how much the position `node` would add to the packet with the number `packet`.

    Return four results: whether every input is known (a constant or a settled position) or computed by this packet;
    whether this packet computes at least one input; how many bytes the node adds; and how many inputs were written into
    `counted`. If the first result is False, the other results are incomplete.

    A packet contains a known input only once. `constant_seen` (by constant) and `seen` (by position) have the number of
    the last packet whose size includes the input. The inputs that this node adds to the packet are written into
    `counted`.
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
    """Undo the changes of `_measure_inputs` to `constant_seen` and `seen`, because the node did not go into the
    packet."""
    for index in range(fresh):
        source = counted[index]
        if source < 0:
            constant_seen[-source - 1] = 0
        else:
            seen[source] = 0


def _take_back(taken, start, end, where):
    """Mark the positions `taken[start:end]`, which were in a packet, as waiting for a packet again."""
    for index in range(start, end):
        where[taken[index]] = -1


def fill(islands, graph, weights, limits, packing, out):
    """Fill the packets of one wave with all positions that can be computed now. The first packet has number `first`.

    A position goes into a packet if it has to be computed (it is `dirty`, or an input is in the packet) and each of its
    inputs is known (a constant or a settled position) or in the same packet. If all inputs are known and the position
    is not dirty, then no input has changed, and the position is settled. A position that has to wait for another
    position is written into `later`, for the next wave.

    A packet has about `budget` bytes, or contains a single position that is larger. An island joins the packet of the
    islands before it only if the whole island fits. After an island, a packet that has `enough` nodes and edges is
    closed, unless all following islands together have at most `small_rest` nodes and edges. `left` is the number of
    nodes and edges of all islands.

    A position whose inputs are all known and take more than `largest` bytes is written into `oversized`. If there is
    such a position, the caller has to discard the other results. If `one_only` is True, the function gives up as soon
    as a second packet is needed.

    Return the number of packets, the number of islands in `later`, the number of oversized positions, and whether the
    function gave up.
    """
    parts, begin = islands  # island i is parts[begin[i]:begin[i + 1]], in topological order
    ptr, idx, dirty, template = graph
    constant_weight, weight, template_weight = weights  # in bytes
    first, budget, largest, enough, left, small_rest, one_only = limits
    # These arrays are kept from wave to wave. `where` has the packet of each position (0: settled, -1: waiting), and
    # `index_in_packet` its index in that packet. `constant_seen`, `seen` and `template_seen` have the last packet whose
    # size includes each constant, position and template.
    where, index_in_packet, constant_seen, seen, template_seen = packing
    # `taken` receives the positions of all packets; packet `first + i` ends at `ends[i]`. `later` receives the islands
    # for the next wave, and `later_begin` where each begins. `counted` is scratch.
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
            # If the inputs are too large, but this packet computes some of them, the position has to wait for these
            # inputs: the fault of an input takes precedence over the fault `too_large`.
            if not ready or (size > largest and inside):
                later[deferred] = node
                deferred += 1
            elif not inside and not dirty[node]:
                where[node] = 0  # the position is settled, because none of its inputs changed
            elif size > largest:
                oversized[oversized_count] = node
                oversized_count += 1
            else:  # the packet is full
                if one_only:
                    ends[packet - first] = filled
                    return packet - first + 1, islands_left, oversized_count, True
                index -= 1
                if shares_packet:  # move the island from the shared packet to a new one
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
    """Write the inputs of a packet's `nodes` into `refs`, as slots of the packet, and the constants of the packet into
    `constants`. Return the number of constants.

    A constant of a packet is an input that the packet does not compute. It is written as `-k - 1` if it is constant `k`
    of the graph, and as a position otherwise. The slots of a packet number its constants first, then its nodes.
    `constant_slot` (by constant of the graph) and `slot` (by position) are scratch; they are all -1 before and after.
    """
    inside = 1 << 30  # replaced by the number of constants at the end, when this number is known
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
