"""The data source in a Spark that a program starts by itself, without Connect."""

import os
import sys
from pathlib import Path

import anyio
import pytest

from rebaser_client.jetstream import JetStream
from rebaser_core.commit import Commit, Kind
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import encode_commit
from rebaser_core.streams.subjects import Subjects
from rebaser_core.updates import Set

pytestmark = [pytest.mark.anyio, pytest.mark.spark, pytest.mark.long, pytest.mark.usefixtures("topology")]

PROGRAM = """
import sys
from pyspark.sql import SparkSession
from rebaser_client.spark import RebaserDataSource

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1").getOrCreate()
spark.dataSource.register(RebaserDataSource)
frame = spark.read.format("rebaser").options(nats=sys.argv[1], prefix=sys.argv[2], workspace="shop").load()
print([(row.change_set, row.id, row.number) for row in frame.collect()])
spark.stop()
"""


async def test_a_classic_session_reads_change_sets(
    js: JetStream, subjects: Subjects, nats_url: str, tmp_path: Path
) -> None:
    commit = Commit("c1", 0, Kind.REBASE, 0, "owner", None, None, delta=(Set("price", 9.5),))
    headers, payload = encode_commit(commit)
    await js.publish(subjects.commits(ChangeSetKey("shop", "main")), payload, headers)
    command = [sys.executable, "-c", PROGRAM, nats_url, subjects.prefix]
    given = {"PYTHONPATH": str(Path(__file__).parents[2]), "PYSPARK_PYTHON": sys.executable}
    with anyio.fail_after(240):
        done = await anyio.run_process(command, check=False, env={**os.environ, **given}, cwd=tmp_path)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    assert done.stdout.splitlines()[-1] == b"[('main', 'price', 9.5)]"
