"""Thresholds that tests force, where what they make must not take for ever."""

from dataclasses import replace

from rebaser_core.thresholds import Thresholds


def in_few_parts(those: Thresholds, size: int, parts: int) -> Thresholds:
    """`those`, but for what cuts a change set of `size` values: about `parts` packets of an update, or parts of a
    checkpoint, at most. Each is a message of its own.
    """
    least = size // parts + 1
    return replace(
        those,
        packet_bytes=max(those.packet_bytes, 40 * least),
        part_rows=max(those.part_rows, least),
        part_bytes=max(those.part_bytes, 64 * 1024),  # a batch of one row takes some KiB
        batch_rows=max(those.batch_rows, least),
        batch_inputs=max(those.batch_inputs, 4 * least),
        copy_step_objects=max(those.copy_step_objects, least),
        max_deltas=min(those.max_deltas, parts),
    )
