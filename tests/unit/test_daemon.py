"""Spark's Python daemon: what it says while it loads is not for Spark to read."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os
from rebaser.dvu.daemon import quiet

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
