"""What a checkpoint is made of: blobs that are read one after another."""

from dataclasses import dataclass

from rebaser_core import thresholds


@dataclass(frozen=True, slots=True)
class PartRef:
    """A blob of a checkpoint, and its size in bytes."""

    address: str
    size: int


@dataclass(frozen=True, slots=True)
class Chain:
    """The parts of the checkpoint at log sequence `last`, oldest first; without a base there is none."""

    last: int = 0
    base: tuple[PartRef, ...] = ()
    deltas: tuple[PartRef, ...] = ()

    @property
    def size(self) -> int:
        """Bytes in all."""
        return sum(part.size for part in self.base + self.deltas)

    @property
    def newest(self) -> PartRef:
        """The part that names the others."""
        return (self.base + self.deltas)[-1]

    @property
    def worn(self) -> bool:
        """Whether it is time for a new base: by now the deltas have paid for half of it."""
        limits, deltas = thresholds.now, sum(part.size for part in self.deltas)
        base = sum(part.size for part in self.base)
        return not self.base or len(self.deltas) >= limits.deltas or limits.delta_bytes * deltas > base
