"""Stands in for `uv` where a test has no network: `sync` installs the project of the working folder, and `run` runs a
program.

`sync` writes what installers write, the metadata of the distribution with its entry points and a script for each
command, into the folder `OFFLINE_UV`, which has to be in PYTHONPATH; its folder `bin` has to be in PATH. Instead of
installing requirements, it checks that they are there.
"""

import os
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement


def sync(site: Path) -> None:
    pyproject: dict[str, Any] = tomllib.loads(Path("pyproject.toml").read_text())
    project = pyproject["project"]
    for line in [*project["dependencies"], *pyproject["dependency-groups"]["dev"]]:
        needed = Requirement(line)
        found = distribution(needed.name)
        missing = needed.extras - set(found.metadata.get_all("Provides-Extra") or ())
        if missing or not needed.specifier.contains(found.version):
            sys.exit(f"there is {found.name} {found.version}, without {missing or 'the right version'}: {line}")
    info = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = {"console_scripts": project.get("scripts", {}), **project.get("entry-points", {})}
    lines = [[f"[{group}]", *(f"{name} = {value}" for name, value in groups[group].items())] for group in groups]
    (info / "entry_points.txt").write_text("".join(f"{line}\n" for group in lines for line in group))
    for name in pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        (site / name).symlink_to(Path(name).absolute())
    for name, value in project.get("scripts", {}).items():
        module, _, function = value.partition(":")
        script = site / "bin" / name
        script.parent.mkdir(exist_ok=True)
        script.write_text(f"#!{sys.executable}\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n")
        script.chmod(0o755)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["sync"]:
            sync(Path(os.environ["OFFLINE_UV"]))
        case ["run", ("mypy" | "pytest" | "rebaser" | "ruff") as program, *arguments]:
            os.execv(sys.executable, [sys.executable, "-m", program, *arguments])
        case ["run", program, *arguments]:
            os.execvp(program, [program, *arguments])
        case _:
            sys.exit(f"no such command here: {sys.argv[1:]}")
