"""Large packets and results go in files between an owner and workers on the same machine."""

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from rebaser.dvu.planning.planner import plan
from rebaser.dvu.spark import session
from rebaser.dvu.wire import mailbox
from rebaser.dvu.worker.evaluate import evaluate_batches, evaluate_packet
from rebaser_core import thresholds
from rebaser_core.errors import DvuError
from rebaser_core.thresholds import Thresholds
from rebaser_core.updates import Derive, Set
from tests.benchmarks.evaluate import graph
from tests.support.graphs import Book

LARGE = b"x" * Thresholds().file_transfer_min_bytes


def test_a_large_message_is_left_and_taken_and_readable_when_its_folder_is_gone(tmp_path: Path) -> None:
    with mailbox.job_folder("job", tmp_path) as folder:
        assert mailbox.put(folder, "0", LARGE)
        assert not mailbox.put(folder, "1", LARGE[1:])
        assert [path.name for path in Path(folder).iterdir()] == ["0"]
        taken = mailbox.get(folder, "0")
        with pytest.raises(DvuError, match="left"):
            mailbox.get(folder, "1")
    assert taken.to_pybytes() == LARGE
    assert not list(tmp_path.iterdir())


def test_where_no_file_can_be_written_nothing_is_left(tmp_path: Path) -> None:
    with mailbox.job_folder("job", None) as folder:
        assert folder == ""
        assert not mailbox.put(folder, "0", LARGE)
    (tmp_path / "file").touch()
    with mailbox.job_folder("job", tmp_path / "file") as folder:
        assert folder == ""
    with mailbox.job_folder("job", tmp_path) as folder:
        Path(folder, "0").mkdir()
        assert not mailbox.put(folder, "0", LARGE)
        assert [path.name for path in Path(folder).iterdir()] == ["0"]
    assert not mailbox.put(folder, "0", LARGE)  # a worker that is late
    assert not Path(folder).exists()


def test_a_job_whose_owner_fails_leaves_no_folder(tmp_path: Path) -> None:
    def fail() -> None:
        with mailbox.job_folder("job", tmp_path) as folder:
            assert mailbox.put(folder, "0", LARGE)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not list(tmp_path.iterdir())


def test_a_worker_that_is_at_it_while_its_owner_leaves_keeps_nothing_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = shutil.rmtree

    def beside(path: Path, **options: bool) -> None:
        assert not mailbox.put(folder, "1", LARGE)
        remove(path, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(shutil, "rmtree", beside)
    with mailbox.job_folder("job", tmp_path) as folder:
        assert mailbox.put(folder, "0", LARGE)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("large", [1, 15_000, 10**9])
def test_packets_and_results_are_the_same_by_file_and_through_spark(
    large: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thresholds, "now", Thresholds(file_transfer_min_bytes=large, result_bytes=40_000))
    packets = [graph("dag", size).encode() for size in (10, 1000, 5000, 20)]
    with mailbox.job_folder("job", tmp_path) as folder:
        rows = session._rows(packets, folder)
        found = pa.Table.from_batches(evaluate_batches(rows.to_batches()))
        by_file = found.column("result").null_count
        assert (by_file == 0, by_file == found.num_rows) == (large == 10**9, large == 1)
        results = session._results(found, len(packets), folder)
    assert [[bytes(part) for part in parts] for parts in results] == [evaluate_packet(one) for one in packets]
    assert len(results[2]) > 1


def test_who_takes_long_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    with mailbox.job_folder("job", tmp_path) as folder:
        tell = mailbox.ProgressFile(folder, "0")
        tell.begin(0)
        tell(5)
        assert mailbox.visited_nodes(Path(folder)) == {}
        now += 10
        tell(1)
        tell(1)
        assert mailbox.visited_nodes(Path(folder)) == {0: 6}
        Path(folder, f"{mailbox._PROGRESS}3").write_text("3 30\n")  # another worker
        Path(folder, f"{mailbox._PROGRESS}3.77").write_text("3 31\n")  # the same worker, during a write
        for packet in (1, 2):
            tell.begin(packet)
            now += 10
            tell(1)
        assert mailbox.visited_nodes(Path(folder)) == {0: 7, 1: 1, 2: 1, 3: 30}
        Path(folder, f"{mailbox._PROGRESS}4").write_text("what a plug-in wrote")
        assert mailbox.visited_nodes(Path(folder)).items() <= {0: 7, 1: 1, 2: 1, 3: 30}.items()
    now += 10
    tell(1)  # there is no mailbox any more
    assert mailbox.visited_nodes(Path(folder)) == {}
    mailbox.ProgressFile("", "0")(1)


@pytest.mark.parametrize("shape", ["dag", "chain"])
@pytest.mark.parametrize("size", [50, 5000])
def test_every_node_is_told_once(shape: str, size: int) -> None:
    work = graph(shape, size)
    told: list[int] = []
    evaluate_packet(work.encode(), report_progress=told.append)
    assert sum(told) == len(work.template)


def test_nodes_that_are_computed_together_are_told_too() -> None:
    texts = [Set(f"t{at}", "x" * (at % 7)) for at in range(200)]
    derived = [Derive(f"d{at}", "concat", {"x": f"t{at}", "y": f"t{at // 2}"}) for at in range(200)]
    again = [Derive(f"e{at}", "upper", {"x": f"d{at}"}) for at in range(200)]
    with Book([*texts, *derived, *again]).state.view() as view:
        [packet] = plan(view).next_wave()
        told: list[int] = []
        evaluate_packet(packet, report_progress=told.append)
    assert sum(told) == 400
