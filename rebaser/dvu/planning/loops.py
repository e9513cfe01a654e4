"""Contains the loops over arrays with which planning runs. Numba compiles them; Python can also run them as they are.

A row is the number of an id in a change set. A graph consists of some of these rows, numbered from 0 by position. The
inputs of position `i` are `idx[ptr[i]:ptr[i + 1]]`, as in a compressed sparse row matrix. An input is a position or, if
it is outside the graph, `-k - 1` for constant `k`. The dependents of position `i` are `sidx[sptr[i]:sptr[i + 1]]`.

Invariant: every function takes only numbers, arrays, and tuples of numbers and arrays. It calls only functions that are
defined above it and whose names begin with an underscore; these are compiled into it. Its last parameters are the
arrays that it fills, and arrays that it uses as temporary storage ("scratch").
"""

# ruff: noqa: PLR0912, PLR0917, C901, SIM110 - smaller functions would make the compiled loops slower
# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False


def _is_input(row, dependent, template, first_input, arity, refs):
    """Return whether `row` is among the inputs of the derived row `dependent`."""
    start = first_input[dependent]
    for position in range(start, start + arity[template[dependent]]):
        if refs[position] == row:
            return True
    return False


def _next_pattern(link, link_pattern, next_link, pattern_row, mark):
    """Follow links from `link` to the next pattern whose row is not marked, and mark that row. Return the row and the
    link at which to continue. The row is -1 if all remaining patterns are marked."""
    while link > 0:
        row = pattern_row[link_pattern[link]]
        link = next_link[link]
        if row >= 0 and not mark[row]:
            mark[row] = 1
            return row, link
    return -1, link


def reach(roots, given, columns, edges, links, checked, limit, mark, out):
    """Find all derived rows that are among `roots`, or that depend on `roots` or on rows that the caller has found.

    The search is breadth-first. It writes the rows into `out`, and sets `mark` to 1 for each. The caller has already
    written and marked the first `given` rows of `out`. After them come the derived roots, the direct dependents of
    roots, and all other rows. Return the number of rows up to the last direct dependent of a root, and the number of
    all rows. If there are more than `limit` rows, the search stops, and the first number is -1.

    `columns` are `state, template, first_input, arity, refs`. `edges` are arrays of `rebaser_core.state.dependents`:
    `offsets` and `targets` of the sorted edges; `head`, `next` and `appended` of the edges that were added later. An
    edge is dead if its target no longer has its source as an input. The function recognizes dead edges to targets with
    at most `checked` inputs, and does not follow them. `links` are arrays of
    `rebaser_core.state.patterns.links.PatternLinks`: `first_link` (empty if there are no patterns), `link_pattern`,
    `next_link` and `pattern_row`. The dependents of a pattern depend on each row that the pattern matches. The row of
    each pattern that was followed is marked, but not written into `out`.
    """
    state, template, first_input, arity, refs = columns
    offsets, targets, first_appended, next_appended, appended_targets = edges
    first_link, link_pattern, next_link, pattern_row = links
    found = given
    for root in roots:
        if template[root] >= 0 and state[root] and not mark[root]:
            mark[root] = 1
            out[found] = root
            found += 1
    if found > limit:
        return -1, found
    direct = found
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
            if link > 0:  # continue with the dependents of a pattern that matches the row
                row, link = _next_pattern(link, link_pattern, next_link, pattern_row, mark)
        step += 1
        if step == len(roots):
            direct = found
    return direct, found


def input_counts(rows, columns, pattern_of, pattern_size, counts, patterns):
    """Write the number of inputs of each of `rows` into `counts`, and the number of patterns among them into
    `patterns`. In `counts`, each row that a pattern matches counts as one input; the pattern itself does not count.

    `columns` are `template, first_input, arity, refs`. `pattern_of[row]` is `-n - 1` for the row of pattern `n`, which
    matches `pattern_size[n]` rows, and not negative for any other row.
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
    """Write the inputs of `rows` into `ptr` and `idx`, as a graph in which `rows[i]` has position `i`.

    A pattern among the inputs is replaced by the rows that it matches. An input that is not one of `rows` becomes a
    constant; the row of constant `k` is written into `outside[k]`. Return the number of constants.

    `columns` are `template, first_input, arity, refs`. `expanded` are the arrays of
    `rebaser.dvu.planning.patterns.Expansion`: `pattern_of, begin, size, members, input_counts`. Pattern `n` matches
    the rows `members[begin[n]:begin[n] + size[n]]`. If there are patterns, a position with 0 in `input_counts` gets no
    inputs, even if its definition has some. `mark` is 1 for `rows`. `position` and `constant` are scratch, with an item
    for each row. Before the call, `ptr` and `constant` are all zero.
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
    """Write the dependents of each position into `sptr` and `sidx`. Write the number of its inputs that are not
    constants into `waiting`. Before the call, `waiting` and `sptr` are all zero."""
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
    """Extend the topological order in `order`, level by level (Kahn's algorithm). Return its new length.

    `order` has `filled` positions so far. The positions from index `start` on have not been visited. `waiting` is the
    number of inputs of each position that have not been visited. Visiting a position reduces this number for each of
    its dependents. A dependent is appended to `order` when the number becomes 0.
    """
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
    """Divide the positions in `order` into islands, which have no edges between them. Return the number of islands.

    Island `i` is written to `parts[begin[i]:begin[i + 1]]`; its positions are in the same order as in `order`. Edges
    from positions that are not `alive` are ignored. `parent` and `label` are scratch. Before the call, `parent[i]` is
    `i`, `label` is all -1, and `begin` is all zero.
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


def mark_dependents(changed, sptr, sidx, dirty):
    """Set `dirty` to 1 for each direct dependent of the positions `changed`."""
    for position in changed:
        for edge in range(sptr[position], sptr[position + 1]):
            dirty[sidx[edge]] = 1


def is_topological(ptr, idx):
    """Return whether the positions are in topological order: each input is a constant or a lower position."""
    for position in range(len(ptr) - 1):
        for edge in range(ptr[position], ptr[position + 1]):
            if idx[edge] >= position:
                return False
    return True


def depth_first(sptr, sidx, waiting, stack, order):
    """Write the positions into `order`, in topological order, without those that are in a cycle or depend on one.
    Return the number of written positions.

    The order is depth-first: a position is followed by the dependents for which it was the last missing input. This
    keeps values that depend on each other close together. `waiting` is the number of inputs of each position that are
    not in `order` yet; this function reduces it. `stack` is scratch.
    """
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
    """Write the inputs of the positions in `order` into `refs` as slots: first all inputs of the first position, and so
    on. Constant `k` has slot `k`, and position `i` has slot `base + rank[i]`. `base` is the number of constants."""
    filled = 0
    for position in order:
        for edge in range(ptr[position], ptr[position + 1]):
            source = idx[edge]
            refs[filled] = -source - 1 if source < 0 else base + rank[source]
            filled += 1


def mark_reached(base, starts, refs, mark):
    """Mark with 1 all nodes that depend on a slot marked with 1, directly or through other nodes. Mark with 2 all other
    slots that these nodes read. Return the number of nodes that are marked with 1 after the call.

    Node `i` is slot `base + i`. It reads the slots `refs[starts[i]:starts[i + 1]]`, which are all lower than its own.
    """
    reached = 0
    for node in range(len(starts) - 1):
        slot = base + node
        is_reached = mark[slot] == 1
        edge = starts[node]
        while not is_reached and edge < starts[node + 1]:
            is_reached = mark[refs[edge]] == 1
            edge += 1
        if not is_reached:
            continue
        mark[slot] = 1
        reached += 1
        for edge in range(starts[node], starts[node + 1]):
            if mark[refs[edge]] == 0:
                mark[refs[edge]] = 2
    return reached


def concatenate(text, ends, pieces, out):
    """Copy pieces of `text` into `out`, one after another. Return the number of copied bytes.

    `pieces` are numbers: piece `i` is `text[ends[i - 1]:ends[i]]`, and piece 0 begins at the start of the text.
    """
    filled = 0
    for piece in pieces:
        for position in range(ends[piece - 1] if piece else 0, ends[piece]):
            out[filled] = text[position]
            filled += 1
    return filled


def changed_results(results, stored, constants, indexes, rows, new_kinds, new_bits):
    """Find the results that differ from the stored values, and the results that the caller has to compare itself. Write
    the index, row, kind and bits of each such result. Return the number of these results, and how many of them the
    caller has to compare.

    The caller has to compare texts, lists, maps and faults: all kinds from OTHER on. A number, boolean or null differs
    if the stored value has another kind or other bits (kinds below INT have no bits), or if its state is not OK.

    `results` are `nodes, base, row_of, kinds, bits`: result `i` belongs to slot `base + nodes[i]`, whose row is
    `row_of[slot]`. `stored` are `state, kind, bits` by row. `constants` are the state OK and the kinds OTHER and INT.
    """
    nodes, base, row_of, kinds, bits = results
    state, kind, stored_bits = stored
    ok, other, integer = constants
    found = to_compare = 0
    for index in range(len(nodes)):
        row = row_of[base + nodes[index]]
        same = (
            kinds[index] == kind[row]
            and state[row] == ok
            and (kinds[index] < integer or bits[index] == stored_bits[row])
        )
        if kinds[index] >= other or not same:
            to_compare += kinds[index] >= other
            indexes[found] = index
            rows[found] = row
            new_kinds[found] = kinds[index]
            new_bits[found] = bits[index]
            found += 1
    return found, to_compare
