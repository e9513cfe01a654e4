"""Spark's Python daemon: its output while loading does not reach Spark, and it loads what workers need."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os
from rebaser.dvu.worker.daemon import quiet

with quiet():
    print("a plug-in that talks")
    os.write(1, b"a library that talks")
print("address")
"""


def test_spark_reads_nothing_that_is_said_while_modules_load() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, cwd=root)
    assert done.stdout == b"address\n"
    assert b"plug-in that talks" in done.stderr
    assert b"library that talks" in done.stderr


LOADED = """
import sys
from rebaser.dvu.worker.daemon import preload

preload()
import pyarrow as pa
from rebaser.dvu import fingerprint
from rebaser.dvu.worker import evaluate
from rebaser.dvu.functions.registry import registry
from rebaser.dvu.wire.packet import NEVER_COMPUTED, PacketBuilder, DefinitionTemplate
from rebaser.dvu.spark.session import _ROWS

had = set(sys.modules)
templates = [DefinitionTemplate("sum", (("of", -1),), {})]
packet = PacketBuilder(1, fingerprint.code(), registry().fingerprints({"sum"}), templates, [1.5])
packet.template, packet.refs, packet.dirty, packet.old = [0], [~0], bytearray(b"\\1"), [NEVER_COMPUTED]
batch = pa.record_batch([[0], [packet.encode()], [""], [False]], schema=_ROWS)
[found] = evaluate.evaluate_batches([batch])
print(found.num_rows, sorted(set(sys.modules) - had), "pandas" in sys.modules)
"""


@pytest.mark.parametrize("plugged", [False, True])
def test_a_worker_loads_nothing_any_more_and_pandas_only_for_plug_ins(tmp_path: Path, plugged: bool) -> None:
    """Otherwise, each worker would load it by itself, and traverse it in garbage collections after every job."""
    if plugged:
        (tmp_path / "plugged.py").write_text("def double(inputs, params):\n    return 2 * inputs['of']\n")
        info = tmp_path / "plugged-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 1\n")
        (info / "entry_points.txt").write_text("[rebaser.functions]\nplugged.double = plugged:double\n")
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", LOADED], check=True, capture_output=True, text=True, cwd=root, env=environment
    )
    assert done.stdout.split() == ["1", "[]", str(plugged)], done.stderr
