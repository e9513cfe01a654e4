"""The parts of a checkpoint: blobs that readers load one after another."""

from dataclasses import dataclass

from rebaser_core import thresholds


@dataclass(frozen=True, slots=True)
class PartRef:
    """Address and size (bytes) of a blob of a checkpoint."""

    address: str
    size: int


@dataclass(frozen=True, slots=True)
class Chain:
    """The parts of the checkpoint at log sequence `last`, oldest first. Without a base there is no checkpoint."""

    last: int = 0
    base: tuple[PartRef, ...] = ()
    deltas: tuple[PartRef, ...] = ()

    @property
    def size(self) -> int:
        """The size of all parts, in bytes."""
        return sum(part.size for part in self.base + self.deltas)

    @property
    def newest(self) -> PartRef:
        """The newest part, which names the others."""
        return (self.base + self.deltas)[-1]

    @property
    def needs_base(self) -> bool:
        """Whether the next checkpoint should be a new base: there is no base, there are too many deltas, or the deltas
        exceed half of the base."""
        limits, deltas = thresholds.now, sum(part.size for part in self.deltas)
        base = sum(part.size for part in self.base)
        return not self.base or len(self.deltas) >= limits.max_deltas or limits.deltas_bytes_factor * deltas > base
