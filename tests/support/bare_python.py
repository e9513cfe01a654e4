"""Python environments without some of the packages that are installed here, as on other machines."""

import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

# Files of pyspark that the package pyspark-client does not have.
JAVA = ("bin", "core", "data", "examples", "jars", "licenses", "python", "sbin")


def bare_python(
    folder: Path,
    *,
    only: Sequence[str] = ("",),
    without: Sequence[str] = (),
    extra: Sequence[Path] = (),
    java: bool = True,
) -> Path:
    """Make an environment in `folder`, and return the path of its Python.

    It has only packages whose names begin with one of `only` and with none of `without`, and has the folders `extra` on
    its path. With `java` False, it has neither Java nor the files of PySpark that the package pyspark-client leaves
    out.
    """
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
    # With -S, Python has no site-packages other than these. PYTHONPATH comes first, as in Spark's workers.
    given = f'{nowhere}PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}{paths}"'
    python.write_text(f'#!/bin/sh\n{given} exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    return python
