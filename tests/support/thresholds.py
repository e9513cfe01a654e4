"""Forced thresholds that would make a test too slow, adjusted to a bearable number of parts."""

from dataclasses import replace

from rebaser_core.thresholds import Thresholds


def in_few_parts(those: Thresholds, size: int, parts: int) -> Thresholds:
    """Return `those`, changed so that a change set of `size` values is divided into about `parts` packets or checkpoint
    parts at most. Each part is a message, and many messages take long."""
    least = size // parts + 1
    return replace(
        those,
        packet_bytes=max(those.packet_bytes, 40 * least),
        part_rows=max(those.part_rows, least),
        part_bytes=max(those.part_bytes, 64 * 1024),  # a batch of one row takes a few KiB
        batch_rows=max(those.batch_rows, least),
        batch_inputs=max(those.batch_inputs, 4 * least),
        copy_step_objects=max(those.copy_step_objects, least),
        max_deltas=min(those.max_deltas, parts),
    )
