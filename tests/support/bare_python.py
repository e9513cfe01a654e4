"""Pythons that have what is installed here less what a test leaves out, as on machines that are set up otherwise."""

import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

# What the package pyspark-client leaves out of pyspark.
JAVA = ("bin", "core", "data", "examples", "jars", "licenses", "python", "sbin")


def bare_python(
    folder: Path,
    *,
    only: Sequence[str] = ("",),
    without: Sequence[str] = (),
    extra: Sequence[Path] = (),
    java: bool = True,
) -> Path:
    """A Python to start, made in `folder`: with the packages whose names begin as in `only` and not as in `without`,
    with the `extra` folders on its path, and (`java` False) without Java and more of PySpark than the package
    pyspark-client has."""
    site = folder / "site"
    site.mkdir(parents=True)
    for installed in Path(sysconfig.get_path("purelib")).iterdir():
        name = installed.name
        if name.startswith(tuple(only)) and not name.startswith(tuple(without)) and installed.suffix != ".pth":
            (site / name).symlink_to(installed)
    if not java:
        whole = (site / "pyspark").readlink()
        (site / "pyspark").unlink()
        (site / "pyspark").mkdir()
        for part in whole.iterdir():
            if part.name not in JAVA:
                (site / "pyspark" / part.name).symlink_to(part)
    paths = ":".join(map(str, (*extra, site)))
    nowhere = "" if java else f"PATH={folder} JAVA_HOME={folder} "
    python = folder / "python"
    # -S: no site-packages but these. What was on the path goes first, as Spark has it.
    given = f'{nowhere}PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}{paths}"'
    python.write_text(f'#!/bin/sh\n{given} exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    return python
