"""Loops of planning over arrays, written so that Numba can compile them and Python can run them as they are.

Invariant: plain functions of their arguments, none calls another; arrays that are filled come last. A graph that is
planned is numbered by position; `ptr` and `idx` give the inputs of position i as `idx[ptr[i]:ptr[i + 1]]`, an input
outside the graph being `~k` for constant k.
"""

# ruff: noqa: PLR0912, PLR0917, PLR0915, C901 - compiled code: a call costs what a branch saves
# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False


def reach(
    roots, given, state, shape, in_at, arity, refs, start, to, head, next_, late, checked,
    of, pattern, before, pattern_row, limit, mark, out,
):  # fmt: skip
    """Derived rows that `roots` are or reach, into `out`, marked; the first `given` are there already, and what they
    reach is found as well. Returns how many are given or woken by roots directly, and how many there are in all; a
    derived root counts as woken. Gives up with -1 where there are more than `limit`.

    `of`, `pattern`, `before` and `pattern_row` are those of `rebaser_core.state.patterns.links`; `of` is empty where
    there is no pattern. Rows of patterns that were followed are marked as well.
    """
    found = given
    for root in roots:
        if shape[root] >= 0 and state[root] and not mark[root]:
            mark[root] = 1
            out[found] = root
            found += 1
    if found > limit:
        return -1, found
    woken = found
    place = 0
    while place < len(roots) + found:
        row = roots[place] if place < len(roots) else out[place - len(roots)]
        way = of[row] if row < len(of) else 0
        while row >= 0:
            edge = start[row] if row + 1 < len(start) else 0
            end = start[row + 1] if row + 1 < len(start) else 0
            link = head[row] if row < len(head) else -1
            while edge < end or link >= 0:
                if edge < end:
                    one = to[edge]
                    edge += 1
                else:
                    one = late[link]
                    link = next_[link]
                if mark[one] or shape[one] < 0 or not state[one]:
                    continue
                if arity[shape[one]] <= checked:
                    true = False
                    for at in range(in_at[one], in_at[one] + arity[shape[one]]):
                        true = true or refs[at] == row
                    if not true:
                        continue
                if found == limit:
                    return -1, found
                mark[one] = 1
                out[found] = one
                found += 1
            row = -1
            while way > 0 and row < 0:  # and then those who name a pattern that matches
                row = pattern_row[pattern[way]]
                way = before[way]
                if row >= 0:
                    if mark[row]:
                        row = -1
                    else:
                        mark[row] = 1
        place += 1
        if place == len(roots):
            woken = found
    return woken, found


def widths(rows, shape, in_at, arity, refs, of, size, width, patterns):
    """Of each of `rows`, how many inputs it has with all that patterns match, and how many patterns."""
    for place in range(len(rows)):
        row = rows[place]
        width[place] = arity[shape[row]]
        patterns[place] = 0
        for ref in range(in_at[row], in_at[row] + arity[shape[row]]):
            one = of[refs[ref]]
            if one < 0:
                patterns[place] += 1
                width[place] += size[-one - 1] - 1


def local(
    rows, shape, in_at, arity, refs, mark, of, begin, size, members, width, position, constant, ptr, idx, outside
):  # fmt: skip
    """`ptr` and `idx` of the graph of `rows`, and the rows of its constants into `outside`. Returns how many.

    What pattern n stands for are `size[n]` of `members` from `begin[n]` on; `of` is as for `reach`. Where it is not
    empty, rows of `width` 0 get no inputs. `position` and `constant` are by row; the second is all zero.
    """
    for place in range(len(rows)):
        position[rows[place]] = place
    at = known = 0
    for place in range(len(rows)):
        row = rows[place]
        end = in_at[row] + arity[shape[row]]
        if len(of) and not width[place]:
            end = in_at[row]
        for ref in range(in_at[row], end):
            given = refs[ref]
            low, high = 0, 1
            several = len(of) > 0 and of[given] < 0
            if several:
                low = begin[-of[given] - 1]
                high = low + size[-of[given] - 1]
            for member in range(low, high):
                if several:
                    given = members[member]
                if mark[given]:
                    idx[at] = position[given]
                else:
                    if not constant[given]:
                        outside[known] = given
                        known += 1
                        constant[given] = known
                    idx[at] = -constant[given]
                at += 1
        ptr[place + 1] = at
    return known


def successors(ptr, idx, waiting, sptr, sidx):
    """The way back: those that name position i are `sidx[sptr[i]:sptr[i + 1]]`; `waiting` counts inputs inside."""
    count = len(ptr) - 1
    for place in range(count):
        for edge in range(ptr[place], ptr[place + 1]):
            if idx[edge] >= 0:
                waiting[place] += 1
                sptr[idx[edge] + 1] += 1
    for place in range(count):
        sptr[place + 1] += sptr[place]
    for place in range(count):
        for edge in range(ptr[place], ptr[place + 1]):
            one = idx[edge]
            if one >= 0:
                sidx[sptr[one]] = place
                sptr[one] += 1
    for place in range(count, 0, -1):
        sptr[place] = sptr[place - 1]
    if count:
        sptr[0] = 0


def settle(start, filled, sptr, sidx, waiting, order):
    """Append to `order`, which is full up to `filled`, what becomes ready through its entries from `start` on."""
    place = start
    while place < filled:
        for edge in range(sptr[order[place]], sptr[order[place] + 1]):
            one = sidx[edge]
            waiting[one] -= 1
            if not waiting[one]:
                order[filled] = one
                filled += 1
        place += 1
    return filled


def islands(order, ptr, idx, alive, parent, label, begin, parts):
    """`order` cut into weakly connected parts, each in order, into `parts`; they begin at `begin`. Returns how many.

    Positions that are not `alive` connect nothing. `parent` counts up, `label` is all -1.
    """
    for place in order:
        root = place
        while parent[root] != root:
            parent[root] = parent[parent[root]]
            root = parent[root]
        for edge in range(ptr[place], ptr[place + 1]):
            one = idx[edge]
            if one < 0 or not alive[one]:
                continue
            while parent[one] != one:
                parent[one] = parent[parent[one]]
                one = parent[one]
            if one != root:
                parent[one] = root
    count = 0
    for place in order:
        root = place
        while parent[root] != root:
            parent[root] = parent[parent[root]]
            root = parent[root]
        if label[root] < 0:
            label[root] = count
            count += 1
        label[place] = label[root]
        begin[label[place] + 1] += 1
    for part in range(count):
        begin[part + 1] += begin[part]
    for place in order:
        parts[begin[label[place]]] = place
        begin[label[place]] += 1
    for part in range(count, 0, -1):
        begin[part] = begin[part - 1]
    begin[0] = 0
    return count


def fill(
    parts, begin, ptr, idx, dirty, constant_weight, weight, shape, shape_weight,
    first, budget, largest, enough, left, crumbs, one_only,
    where, place, constant_seen, seen, shape_seen, taken, ends, later, later_begin, heavy,
):  # fmt: skip
    """Fill packets from number `first` on with what waits for nothing in this wave.

    `parts` from `begin[i]` to `begin[i + 1]` is an island in order. A packet holds up to `budget` bytes, and is full
    with `enough` work while more than `crumbs` is left. Fills `where` (by position: the packet, 0 settled, -1
    waiting), `place` in its packet, `taken` (all positions in packets, packet after packet, each ending at `ends`),
    and `later`, islands of what is left. Positions whose inputs are settled and weigh more than `largest` go into
    `heavy`, and nothing else counts then. With `one_only` it gives up where one packet is not enough.

    Returns the numbers of: packets, islands left, heavy positions, and whether it gave up.
    """
    packet, bytes_, nodes, work = first, 0, 0, 0
    filled = rest_count = heavy_count = packets = deferred = 0
    for island in range(len(begin) - 1):
        low, high = begin[island], begin[island + 1]
        if work >= enough and left > crumbs:
            ends[packets] = filled
            packets += 1
            packet, bytes_, nodes, work = packet + 1, 0, 0, 0
        for at in range(low, high):
            left -= 1 + ptr[parts[at] + 1] - ptr[parts[at]]
        mark_filled, mark_nodes, mark_bytes, mark_work, mark_deferred = filled, nodes, bytes_, work, deferred
        at = low
        while at < high:
            node = parts[at]
            if where[node] == 0:
                at += 1
                continue
            ready, inside, size = True, False, 16
            for edge in range(ptr[node], ptr[node + 1]):
                one = idx[edge]
                size += 4
                if one < 0:
                    if constant_seen[-one - 1] != packet and constant_seen[-one - 1] != -packet:
                        constant_seen[-one - 1] = -packet
                        size += constant_weight[-one - 1]
                elif where[one] == 0:
                    if seen[one] != packet and seen[one] != -packet:
                        seen[one] = -packet
                        size += weight[one]
                elif where[one] == packet:
                    inside = True
                else:
                    ready = False
                    break
            fits = not nodes or bytes_ + size <= budget
            accept = ready and (inside or dirty[node]) and size <= largest and fits
            for edge in range(ptr[node], ptr[node + 1]):  # what was seen counts, or was not seen
                one = idx[edge]
                if one < 0:
                    if constant_seen[-one - 1] == -packet:
                        constant_seen[-one - 1] = packet if accept else 0
                elif seen[one] == -packet:
                    seen[one] = packet if accept else 0
            if not ready or (size > largest and inside):  # whether an input fails comes before what they weigh
                later[deferred] = node
                deferred += 1
            elif not inside and not dirty[node]:
                where[node] = 0  # nothing it depends on changed
            elif size > largest:
                heavy[heavy_count] = node
                heavy_count += 1
            elif not fits:
                if one_only:
                    ends[packets] = filled
                    return packets + 1, rest_count, heavy_count, True
                if mark_nodes:  # it does not fit into what is left of this packet: it gets one of its own
                    for back in range(mark_filled, filled):
                        where[taken[back]] = -1
                    filled, nodes, bytes_, work, deferred = (
                        mark_filled,
                        mark_nodes,
                        mark_bytes,
                        mark_work,
                        mark_deferred,
                    )
                    mark_nodes = 0
                    at = low
                ends[packets] = filled
                packets += 1
                packet, bytes_, nodes, work = packet + 1, 0, 0, 0
                continue
            else:
                if shape_seen[shape[node]] != packet:
                    shape_seen[shape[node]] = packet
                    bytes_ += shape_weight[shape[node]]
                where[node] = packet
                place[node] = nodes
                taken[filled] = node
                filled += 1
                nodes += 1
                bytes_ += size
                work += 1 + ptr[node + 1] - ptr[node]
            at += 1
        if deferred > later_begin[rest_count]:
            rest_count += 1
            later_begin[rest_count] = deferred
    if nodes:
        ends[packets] = filled
        packets += 1
    return packets, rest_count, heavy_count, False


def assemble(nodes, ptr, idx, where, packet, place, constant_slot, slot, refs, constants):
    """Inputs of the `nodes` of a packet as slots, into `refs`; its constants (`-k - 1`: constant k of the graph, else a
    settled position) into `constants`. Returns how many. `constant_slot` and `slot` are all -1, and are so again."""
    far = 1 << 30
    at = known = 0
    for node in nodes:
        for edge in range(ptr[node], ptr[node + 1]):
            one = idx[edge]
            if one >= 0 and where[one] == packet:
                refs[at] = far + place[one]
            elif one < 0:
                if constant_slot[-one - 1] < 0:
                    constant_slot[-one - 1] = known
                    constants[known] = one
                    known += 1
                refs[at] = constant_slot[-one - 1]
            else:
                if slot[one] < 0:
                    slot[one] = known
                    constants[known] = one
                    known += 1
                refs[at] = slot[one]
            at += 1
    for edge in range(at):
        if refs[edge] >= far:
            refs[edge] += known - far
    for one in constants[:known]:
        if one < 0:
            constant_slot[-one - 1] = -1
        else:
            slot[one] = -1
    return known


def wake(changed, sptr, sidx, dirty):
    """Mark as dirty what depends on the positions `changed`."""
    for place in changed:
        for edge in range(sptr[place], sptr[place + 1]):
            dirty[sidx[edge]] = 1


def ascending(ptr, idx):
    """Whether every input inside stands before what names it."""
    for place in range(len(ptr) - 1):
        for edge in range(ptr[place], ptr[place + 1]):
            if idx[edge] >= place:
                return False
    return True


def depth_first(sptr, sidx, waiting, stack, order):
    """All positions that wait for nothing into `order`, and after each what becomes ready by it, so that what belongs
    together stands together. Returns how many; `waiting` counts down."""
    filled = 0
    for start in range(len(waiting)):
        if waiting[start]:
            continue
        waiting[start] = -1
        stack[0] = start
        top = 1
        while top:
            top -= 1
            place = stack[top]
            order[filled] = place
            filled += 1
            for edge in range(sptr[place], sptr[place + 1]):
                one = sidx[edge]
                waiting[one] -= 1
                if not waiting[one]:
                    waiting[one] = -1
                    stack[top] = one
                    top += 1
    return filled


def relabel(order, rank, ptr, idx, base, refs):
    """Inputs of the positions in `order` as slots, into `refs`: first `base` constants, then positions by `rank`."""
    at = 0
    for place in order:
        for edge in range(ptr[place], ptr[place + 1]):
            one = idx[edge]
            refs[at] = -one - 1 if one < 0 else base + rank[one]
            at += 1


def spread(base, starts, refs, mark):
    """Mark with 1 all nodes that slots marked so reach, and with 2 whatever else they read. Returns how many nodes.

    Node i is slot `base + i` and reads `refs[starts[i]:starts[i + 1]]`, slots before its own.
    """
    reached = 0
    for node in range(len(starts) - 1):
        slot = base + node
        woken = mark[slot] == 1
        at = starts[node]
        while not woken and at < starts[node + 1]:
            woken = mark[refs[at]] == 1
            at += 1
        if not woken:
            continue
        mark[slot] = 1
        reached += 1
        for edge in range(starts[node], starts[node + 1]):
            if mark[refs[edge]] == 0:
                mark[refs[edge]] = 2
    return reached


def gather(text, ends, which, out):
    """Copy the pieces `which` of `text`, piece i being what ends before `ends[i]`, into `out`. Returns how much."""
    filled = 0
    for one in which:
        for at in range(ends[one - 1] if one else 0, ends[one]):
            out[filled] = text[at]
            filled += 1
    return filled


def differing(
    nodes, base, row_of, kinds, bits, state, kind, num, settled, plain, whole,
    places, rows, new_kinds, new_bits,
):  # fmt: skip
    """Results that are not what stands, into `places`, with their rows, kinds and bits. Returns how many, and how many
    of them are of kind `plain` or above: these are taken whatever stands.

    Result i, of `kinds[i]` and `bits[i]`, is that of slot `base + nodes[i]`, which is in row `row_of[slot]`. What
    stands there counts if its `state` is `settled`. Of kinds below `whole` bits say nothing.
    """
    found = odd = 0
    for at in range(len(nodes)):
        row = row_of[base + nodes[at]]
        same = kinds[at] == kind[row] and state[row] == settled and (kinds[at] < whole or bits[at] == num[row])
        if kinds[at] >= plain or not same:
            odd += kinds[at] >= plain
            places[found] = at
            rows[found] = row
            new_kinds[found] = kinds[at]
            new_bits[found] = bits[at]
            found += 1
    return found, odd
