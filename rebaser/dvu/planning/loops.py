"""Loops over arrays for planning. Numba compiles them; Python can also run them as they are.

A graph is numbered by position. The inputs of position `i` are `idx[ptr[i]:ptr[i + 1]]`, as in a compressed sparse row
matrix. An input outside the graph, a constant, is `-k - 1` for constant `k`. `sptr` and `sidx` give the dependents of
each position in the same way.

Invariant: every function takes only numbers, arrays and tuples of arrays. It calls only functions that are defined
above it and whose names begin with an underscore; they are compiled into it. Arrays that it fills are its last
parameters.
"""

# ruff: noqa: PLR0912, PLR0917, C901, SIM110 - smaller functions would make the compiled loops slower
# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False


def _is_input(row, dependent, template, first_input, arity, refs):
    """Whether `row` is among the inputs of the derived row `dependent`."""
    start = first_input[dependent]
    for position in range(start, start + arity[template[dependent]]):
        if refs[position] == row:
            return True
    return False


def _next_pattern(link, pattern, before, pattern_row, mark):
    """The row of the next pattern that `link` leads to and that is not marked, or -1; and the link after it."""
    while link > 0:
        row = pattern_row[pattern[link]]
        link = before[link]
        if row >= 0 and not mark[row]:
            mark[row] = 1
            return row, link
    return -1, link


def reach(roots, given, columns, edges, links, checked, limit, mark, out):
    """Write the derived rows that `roots` are or reach into `out`, and mark them.

    The caller has written and marked the first `given` rows of `out`; the rows that they reach are found as well. A
    derived root counts as a direct dependent. Returns the number of given rows and direct dependents of roots, and the
    number of all rows in `out`. As soon as there are more than `limit` rows, the first number is -1.

    `columns` are `state, template, first_input, arity, refs`. `edges` are those of `rebaser_core.state.dependents`:
    offsets and targets of the sorted edges, head, next and target of those appended since. An edge may be dead: an edge
    to a row of up to `checked` inputs is followed only if its source is still one of them. `links` are the arrays of
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
            if link > 0:  # definitions that name a pattern that matches the row depend on the row, too
                row, link = _next_pattern(link, pattern, before, pattern_row, mark)
        step += 1
        if step == len(roots):
            direct = found
    return direct, found


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
    If there are patterns, a row whose count in `input_counts` is 0 gets no inputs, whatever it refers to. `mark` is 1
    for `rows`. `position` and `constant` are scratch by row; `constant` is all zero.
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
    """Append to `order` the positions that become ready through its entries from `start` to `filled`, then those that
    become ready through the appended ones, until none is left. Returns the new length of `order`. `waiting` counts
    down.
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
    """Cut `order` into weakly connected parts, each still in order, and write them into `parts` and where they begin
    into `begin`. Returns how many parts there are.

    Positions that are not `alive` connect nothing. `parent` is scratch for union-find. Before the call, `parent[i]` is
    `i`, `label` is all -1, and `begin` all zero.
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
    island stays together. Returns the number of positions written. `waiting` counts down, `stack` is scratch.
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
    """Write the inputs of the positions in `order` into `refs`, as slots: first `base` constants, then positions by
    `rank`."""
    filled = 0
    for position in order:
        for edge in range(ptr[position], ptr[position + 1]):
            source = idx[edge]
            refs[filled] = -source - 1 if source < 0 else base + rank[source]
            filled += 1


def mark_reached(base, starts, refs, mark):
    """Mark with 1 all nodes that depend on a slot marked with 1, and with 2 the other slots that these nodes read.
    Returns the number of these nodes.

    Node `i` is slot `base + i` and reads `refs[starts[i]:starts[i + 1]]`, slots before its own.
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
    """Copy the given pieces of `text` into `out`; piece `i` ends before `ends[i]`. Returns the number of bytes."""
    filled = 0
    for piece in pieces:
        for position in range(ends[piece - 1] if piece else 0, ends[piece]):
            out[filled] = text[position]
            filled += 1
    return filled


def changed_results(results, stored, kinds_of_interest, indexes, rows, new_kinds, new_bits):
    """Write the results that differ from the stored values: their indexes among the results, rows, kinds and bits.
    Returns how many, and how many of them are of kind `plain` or above; those are taken regardless of the stored
    values.

    `results` are `nodes, base, row_of, kinds, bits`: result `i` is that of slot `base + nodes[i]`, whose row is
    `row_of[slot]`. `stored` are `state, kind, num` by row. `kinds_of_interest` are `settled, plain, with_bits`: a
    stored value counts if its state is `settled`, and the bits of kinds below `with_bits` carry no meaning.
    """
    nodes, base, row_of, kinds, bits = results
    state, kind, num = stored
    settled, plain, with_bits = kinds_of_interest
    found = not_plain = 0
    for index in range(len(nodes)):
        row = row_of[base + nodes[index]]
        same = (
            kinds[index] == kind[row]
            and state[row] == settled
            and (kinds[index] < with_bits or bits[index] == num[row])
        )
        if kinds[index] >= plain or not same:
            not_plain += kinds[index] >= plain
            indexes[found] = index
            rows[found] = row
            new_kinds[found] = kinds[index]
            new_bits[found] = bits[index]
            found += 1
    return found, not_plain
