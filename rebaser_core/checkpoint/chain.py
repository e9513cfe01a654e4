"""Describes the parts of a checkpoint, which are blobs that a reader loads one after another."""

from dataclasses import dataclass

from rebaser_core import thresholds


@dataclass(frozen=True, slots=True)
class PartRef:
    """A part of a checkpoint: the address and the size (bytes) of the blob that contains it."""

    address: str
    size: int


@dataclass(frozen=True, slots=True)
class Chain:
    """The parts, oldest first, of a checkpoint that contains the state at log sequence `last`. If `base` is empty,
    there is no checkpoint yet."""

    last: int = 0
    base: tuple[PartRef, ...] = ()
    deltas: tuple[PartRef, ...] = ()

    @property
    def size(self) -> int:
        """The size of all parts, in bytes."""
        return sum(part.size for part in self.base + self.deltas)

    @property
    def newest(self) -> PartRef:
        """The newest part, which refers to all other parts."""
        return (self.base + self.deltas)[-1]

    @property
    def needs_base(self) -> bool:
        """Whether the next checkpoint should be a new base, because there is no base, there are too many deltas, or the
        deltas are larger than half of the base."""
        limits, deltas = thresholds.now, sum(part.size for part in self.deltas)
        base = sum(part.size for part in self.base)
        return not self.base or len(self.deltas) >= limits.max_deltas or limits.deltas_bytes_factor * deltas > base
