"""Loops over arrays for planning. Numba compiles them; Python can also run them as they are.

A graph is numbered by position. The inputs of position `i` are `idx[ptr[i]:ptr[i + 1]]`, as in a compressed sparse row
matrix. An input outside the graph, a constant, is `-k - 1` for constant `k`. `sptr` and `sidx` give the dependents of
each position in the same way.

Invariant: plain functions of numbers, arrays and tuples of arrays. A function calls only those defined above it whose
names begin with an underscore: they are compiled into it. Arrays that a function fills come last.
"""

# ruff: noqa: PLR0912, PLR0915, PLR0917, C901, SIM110 - compiled code: a call costs what a branch saves
# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False


def _is_input(row, dependent, template, first_input, arity, refs):
    """Whether `row` is among the inputs of the derived row `dependent`."""
    start = first_input[dependent]
    for position in range(start, start + arity[template[dependent]]):
        if refs[position] == row:
            return True
    return False


def _next_pattern(link, pattern, before, pattern_row, mark):
    """The row of the next pattern that `link` leads to and that is not marked, or -1; and the link behind it."""
    while link > 0:
        row = pattern_row[pattern[link]]
        link = before[link]
        if row >= 0 and not mark[row]:
            mark[row] = 1
            return row, link
    return -1, link


def reach(roots, given, columns, edges, links, checked, limit, mark, out):
    """Write the derived rows that `roots` are or reach into `out`, and mark them.

    The first `given` rows of `out` are there and marked already; what they reach is found as well. A derived root
    counts as woken. Returns how many rows are given or directly woken by a root, and how many there are in all; or -1
    instead of the first number as soon as there are more than `limit`.

    `columns` are `state, template, first_input, arity, refs`. `edges` are those of `rebaser_core.state.dependents`:
    offsets and targets of the sorted edges, head, next and target of those appended since. An edge may be dead:
    one to a row of up to `checked` inputs is followed only if it is still one of them. `links` are the arrays of
    `rebaser_core.state.patterns.links`, the first of them empty if there is no pattern; the rows of patterns that were
    followed are marked as well.
    """
    state, template, first_input, arity, refs = columns
    offsets, targets, first_appended, next_appended, appended_targets = edges
    first_link, pattern, before, pattern_row = links
    found = given
    for root in roots:
        if template[root] >= 0 and state[root] and not mark[root]:
            mark[root] = 1
            out[found] = root
            found += 1
    if found > limit:
        return -1, found
    woken = found
    step = 0
    while step < len(roots) + found:
        row = roots[step] if step < len(roots) else out[step - len(roots)]
        link = first_link[row] if row < len(first_link) else 0
        while row >= 0:
            edge = offsets[row] if row + 1 < len(offsets) else 0
            end = offsets[row + 1] if row + 1 < len(offsets) else 0
            appended = first_appended[row] if row < len(first_appended) else -1
            while edge < end or appended >= 0:
                if edge < end:
                    dependent = targets[edge]
                    edge += 1
                else:
                    dependent = appended_targets[appended]
                    appended = next_appended[appended]
                if mark[dependent] or template[dependent] < 0 or not state[dependent]:
                    continue
                if arity[template[dependent]] <= checked and not _is_input(
                    row, dependent, template, first_input, arity, refs
                ):
                    continue
                if found == limit:
                    return -1, found
                mark[dependent] = 1
                out[found] = dependent
                found += 1
            row = -1
            if link > 0:  # dependents also name patterns that match the row
                row, link = _next_pattern(link, pattern, before, pattern_row, mark)
        step += 1
        if step == len(roots):
            woken = found
    return woken, found


def input_counts(rows, columns, pattern_of, pattern_size, counts, patterns):
    """For each of `rows`, write how many inputs it has, with all that its patterns match, and how many patterns.

    `columns` are `template, first_input, arity, refs`; `pattern_of[row]` is `-n - 1` in the row of pattern `n`, which
    matches `pattern_size[n]` rows.
    """
    template, first_input, arity, refs = columns
    for position in range(len(rows)):
        row = rows[position]
        counts[position] = arity[template[row]]
        patterns[position] = 0
        for ref in range(first_input[row], first_input[row] + arity[template[row]]):
            pattern = pattern_of[refs[ref]]
            if pattern < 0:
                patterns[position] += 1
                counts[position] += pattern_size[-pattern - 1] - 1


def local_edges(rows, columns, expanded, mark, position, constant, ptr, idx, outside):
    """Write `ptr` and `idx` of the graph of `rows`, and the rows of its constants into `outside`. Returns how many
    constants there are.

    `columns` are as for `input_counts`. `expanded` are the arrays of `rebaser.dvu.planning.patterns.Expansion`:
    `pattern_of, begin, size, members, input_counts`. Pattern `n` stands for `size[n]` of `members` from `begin[n]` on.
    Unless `pattern_of` is empty, rows of input count 0 get no inputs. `mark` is 1 for `rows`. `position` and `constant`
    are scratch by row; `constant` is all zero.
    """
    template, first_input, arity, refs = columns
    pattern_of, begin, size, members, count = expanded
    for at in range(len(rows)):
        position[rows[at]] = at
    filled = constants = 0
    for at in range(len(rows)):
        row = rows[at]
        end = first_input[row] + arity[template[row]]
        if len(pattern_of) and not count[at]:
            end = first_input[row]
        for ref in range(first_input[row], end):
            source = refs[ref]
            low, high = 0, 1
            is_pattern = len(pattern_of) > 0 and pattern_of[source] < 0
            if is_pattern:
                low = begin[-pattern_of[source] - 1]
                high = low + size[-pattern_of[source] - 1]
            for member in range(low, high):
                if is_pattern:
                    source = members[member]
                if mark[source]:
                    idx[filled] = position[source]
                else:
                    if not constant[source]:
                        outside[constants] = source
                        constants += 1
                        constant[source] = constants
                    idx[filled] = -constant[source]
                filled += 1
        ptr[at + 1] = filled
    return constants


def reverse_edges(ptr, idx, waiting, sptr, sidx):
    """Write the dependents of each position into `sptr` and `sidx`, and how many inputs it has inside the graph into
    `waiting`. `waiting` and `sptr` are all zero before."""
    count = len(ptr) - 1
    for position in range(count):
        for edge in range(ptr[position], ptr[position + 1]):
            if idx[edge] >= 0:
                waiting[position] += 1
                sptr[idx[edge] + 1] += 1
    for position in range(count):
        sptr[position + 1] += sptr[position]
    for position in range(count):
        for edge in range(ptr[position], ptr[position + 1]):
            source = idx[edge]
            if source >= 0:
                sidx[sptr[source]] = position
                sptr[source] += 1
    for position in range(count, 0, -1):
        sptr[position] = sptr[position - 1]
    if count:
        sptr[0] = 0


def append_ready(start, filled, sptr, sidx, waiting, order):
    """Append to `order` the positions that become ready through its entries from `start` to `filled`, and so on.
    Returns the new length of `order`. `waiting` counts down."""
    entry = start
    while entry < filled:
        for edge in range(sptr[order[entry]], sptr[order[entry] + 1]):
            dependent = sidx[edge]
            waiting[dependent] -= 1
            if not waiting[dependent]:
                order[filled] = dependent
                filled += 1
        entry += 1
    return filled


def islands(order, ptr, idx, alive, parent, label, begin, parts):
    """Cut `order` into weakly connected parts, each still in order, and write them into `parts` and where they begin
    into `begin`. Returns how many parts there are.

    Positions that are not `alive` connect nothing. `parent` is scratch for union-find: position `i` has `i`. `label`
    is all -1, `begin` all zero.
    """
    for position in order:
        root = position
        while parent[root] != root:
            parent[root] = parent[parent[root]]
            root = parent[root]
        for edge in range(ptr[position], ptr[position + 1]):
            source = idx[edge]
            if source < 0 or not alive[source]:
                continue
            while parent[source] != source:
                parent[source] = parent[parent[source]]
                source = parent[source]
            if source != root:
                parent[source] = root
    count = 0
    for position in order:
        root = position
        while parent[root] != root:
            parent[root] = parent[parent[root]]
            root = parent[root]
        if label[root] < 0:
            label[root] = count
            count += 1
        label[position] = label[root]
        begin[label[position] + 1] += 1
    for part in range(count):
        begin[part + 1] += begin[part]
    for position in order:
        parts[begin[label[position]]] = position
        begin[label[position]] += 1
    for part in range(count, 0, -1):
        begin[part] = begin[part - 1]
    begin[0] = 0
    return count


def _work_of(positions, start, end, ptr):
    """The nodes and edges of `positions[start:end]`."""
    work = 0
    for index in range(start, end):
        work += 1 + ptr[positions[index] + 1] - ptr[positions[index]]
    return work


def _measure_inputs(node, packet, ptr, idx, where, constant_weight, weight, constant_seen, seen, counted):
    """What `node` adds to `packet`: whether all its inputs are settled or in the packet, whether one of them is in the
    packet, and bytes.

    A settled input counts once in a packet: `constant_seen` and `seen` have the number of the last packet it counted
    in. The inputs counted for this node are written into `counted`; how many is returned last.
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

    A packet holds up to `budget` bytes, and is full with `enough` nodes and edges unless at most `crumbs` of the `left`
    ones are still to come. Positions whose inputs are settled and take more than `largest` bytes become `heavy`; if
    there are any, nothing else counts. With `one_only`, the function gives up if one packet is not enough.

    Returns how many packets, islands left and heavy positions there are, and whether the function gave up.
    """
    parts, begin = islands  # island i is parts[begin[i]:begin[i + 1]], in topological order
    ptr, idx, dirty, template = graph
    constant_weight, weight, template_weight = weights  # in bytes
    first, budget, largest, enough, left, crumbs, one_only = limits
    # By position: its packet (0 settled, -1 waiting) and its place there. By constant, position, template: the last
    # packet that counted it. All of it is kept from wave to wave.
    where, place, constant_seen, seen, template_seen = packing
    # The positions of all packets, and where each packet ends; islands of what is left, and where each begins.
    taken, ends, later, later_begin, heavy, counted = out
    packet, packet_size, nodes, work = first, 0, 0, 0
    filled = deferred = islands_left = heavy_count = 0
    for island in range(len(begin) - 1):
        if work >= enough and left > crumbs:
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
                where[node], place[node], taken[filled] = packet, nodes, node
                filled, nodes, packet_size = filled + 1, nodes + 1, packet_size + size
                work += 1 + ptr[node + 1] - ptr[node]
                continue
            _forget_inputs(counted, fresh, constant_seen, seen)
            if not ready or (size > largest and inside):  # a fault of an input takes precedence over their weight
                later[deferred] = node
                deferred += 1
            elif not inside and not dirty[node]:
                where[node] = 0  # none of its inputs changed
            elif size > largest:
                heavy[heavy_count] = node
                heavy_count += 1
            else:  # the packet is full
                if one_only:
                    ends[packet - first] = filled
                    return packet - first + 1, islands_left, heavy_count, True
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
    return packet - first, islands_left, heavy_count, False


def packet_inputs(nodes, ptr, idx, where, packet, place, constant_slot, slot, refs, constants):
    """Write the inputs of the `nodes` of a packet into `refs`, as slots, and its constants into `constants`. Returns
    how many constants there are.

    A constant of the packet is a constant `k` of the graph, as `-k - 1`, or a settled position. `constant_slot` and
    `slot` are all -1, before and after.
    """
    inside = 1 << 30  # added to places, as the number of constants is not known yet
    filled = known = 0
    for node in nodes:
        for edge in range(ptr[node], ptr[node + 1]):
            source = idx[edge]
            if source >= 0 and where[source] == packet:
                refs[filled] = inside + place[source]
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


def mark_dependents(changed, sptr, sidx, dirty):
    """Mark the dependents of the positions `changed` as dirty."""
    for position in changed:
        for edge in range(sptr[position], sptr[position + 1]):
            dirty[sidx[edge]] = 1


def is_topological(ptr, idx):
    """Whether every position comes after all its inputs inside the graph."""
    for position in range(len(ptr) - 1):
        for edge in range(ptr[position], ptr[position + 1]):
            if idx[edge] >= position:
                return False
    return True


def depth_first(sptr, sidx, waiting, stack, order):
    """Write all positions that wait for nothing into `order`, each followed by those that it makes ready, so that an
    island stays together. Returns how many. `waiting` counts down, `stack` is scratch."""
    filled = 0
    for start in range(len(waiting)):
        if waiting[start]:
            continue
        waiting[start] = -1
        stack[0] = start
        top = 1
        while top:
            top -= 1
            position = stack[top]
            order[filled] = position
            filled += 1
            for edge in range(sptr[position], sptr[position + 1]):
                dependent = sidx[edge]
                waiting[dependent] -= 1
                if not waiting[dependent]:
                    waiting[dependent] = -1
                    stack[top] = dependent
                    top += 1
    return filled


def input_slots(order, rank, ptr, idx, base, refs):
    """Write the inputs of the positions in `order` into `refs`, as slots: first `base` constants, then positions by
    `rank`."""
    filled = 0
    for position in order:
        for edge in range(ptr[position], ptr[position + 1]):
            source = idx[edge]
            refs[filled] = -source - 1 if source < 0 else base + rank[source]
            filled += 1


def mark_reached(base, starts, refs, mark):
    """Mark with 1 all nodes that slots marked with 1 reach, and with 2 the other slots that these nodes read. Returns
    how many nodes are reached.

    Node `i` is slot `base + i` and reads `refs[starts[i]:starts[i + 1]]`, slots before its own.
    """
    reached = 0
    for node in range(len(starts) - 1):
        slot = base + node
        woken = mark[slot] == 1
        edge = starts[node]
        while not woken and edge < starts[node + 1]:
            woken = mark[refs[edge]] == 1
            edge += 1
        if not woken:
            continue
        mark[slot] = 1
        reached += 1
        for edge in range(starts[node], starts[node + 1]):
            if mark[refs[edge]] == 0:
                mark[refs[edge]] = 2
    return reached


def concatenate(text, ends, pieces, out):
    """Copy the given pieces of `text` into `out`; piece `i` ends before `ends[i]`. Returns how many bytes."""
    filled = 0
    for piece in pieces:
        for position in range(ends[piece - 1] if piece else 0, ends[piece]):
            out[filled] = text[position]
            filled += 1
    return filled


def changed_results(results, stored, kinds_of_interest, places, rows, new_kinds, new_bits):
    """Write the results that differ from the stored values: their places among the results, rows, kinds and bits.
    Returns how many, and how many of them are of kind `plain` or above; those are taken whatever is stored.

    `results` are `nodes, base, row_of, kinds, bits`: result `i` is that of slot `base + nodes[i]`, whose row is
    `row_of[slot]`. `stored` are `state, kind, num` by row. `kinds_of_interest` are `settled, plain, whole`: a stored
    value counts if its state is `settled`, and the bits of kinds below `whole` carry no meaning.
    """
    nodes, base, row_of, kinds, bits = results
    state, kind, num = stored
    settled, plain, whole = kinds_of_interest
    found = not_plain = 0
    for index in range(len(nodes)):
        row = row_of[base + nodes[index]]
        same = kinds[index] == kind[row] and state[row] == settled and (kinds[index] < whole or bits[index] == num[row])
        if kinds[index] >= plain or not same:
            not_plain += kinds[index] >= plain
            places[found] = index
            rows[found] = row
            new_kinds[found] = kinds[index]
            new_bits[found] = bits[index]
            found += 1
    return found, not_plain
