"""The benchmark of garbage collection. Only its long forms collect, on a Spark of their own; `spark/test_gc.py` and
`acceptance/test_gc.py` check what is collected."""

from pathlib import Path

import anyio
import pytest

from rebaser.embedded.nats import embedded_nats
from rebaser_client.admin.provisioning import ensure_topology
from rebaser_client.jetstream import Connection, JetStream
from rebaser_core.streams.topology import TopologyOptions
from tests.benchmarks.garbage import SUBJECTS, Append, figures, fill, measure, parser, writing

pytestmark = [pytest.mark.anyio, pytest.mark.bench]


async def test_there_is_garbage_to_find_and_a_writer_beside(tmp_path: Path) -> None:
    options = parser().parse_args(["--blobs", "40", "--change-sets", "2", "--garbage", "3"])
    async with embedded_nats(tmp_path) as nats, Connection.connect(nats.url) as connection:
        js = JetStream(connection)
        await ensure_topology(js, SUBJECTS, TopologyOptions())
        await fill(js, options)
        appends: list[Append] = []
        async with writing(nats.url, appends):
            log = await js.get_stream(SUBJECTS.commits_stream)
            with anyio.fail_after(60):
                while (await log.info()).messages < 4:  # noqa: ASYNC110 - one names the blobs
                    await anyio.sleep(0.02)
        objects = await (await js.get_stream(f"OBJ_{SUBJECTS.blobs_bucket}")).info()
    assert len(appends) >= 2
    assert objects.messages == 2 * 43  # the content of a blob, and its description


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize(("blobs", "change_sets"), [(1000, 20), (100_000, 1000)], ids=["few", "many"])
async def test_garbage_is_found_among_many_blobs(
    blobs: int, change_sets: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Times are only printed."""
    given = ["--blobs", str(blobs), "--change-sets", str(change_sets), "--garbage", "50", "--runs", "2"]
    found = await measure(parser().parse_args(given))
    assert (found["blobs"], found["garbage"], found["trashed"], found["erased"]) == (blobs + 50, 50, 50, 50)
    with capsys.disabled():
        print(f"\ngarbage: {found}")


def test_only_appends_that_began_in_a_span_count() -> None:
    appends = [(number / 10, 0.001) for number in range(100)]
    appends[50] = (5.0, 1.0)
    assert figures(appends, [(0.0, 5.0), (6.0, 10.0)]) == {"appends": 90, "p50_ms": 1.0, "p99_ms": 1.0}
    assert figures(appends, [(4.95, 5.15)])["p99_ms"] > 1000
    assert figures(appends, [(20.0, 30.0)]) == {}
