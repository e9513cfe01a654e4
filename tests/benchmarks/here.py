"""An engine that computes packets in this process."""

from collections.abc import Sequence

from rebaser.dvu.wire.structure import Structure


class Here:
    """An engine that computes packets in this process."""

    async def evaluate(self, packets: Sequence[bytes], *, label: str, **_: object) -> list[list[bytes]]:
        from rebaser.dvu.worker.evaluate import evaluate_packet

        assert label
        return [evaluate_packet(packet) for packet in packets]

    async def share(self, structure: Structure) -> str | None:
        return None
