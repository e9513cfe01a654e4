"""`deploy/examples/price-book`: what its README says is done, command by command, in an empty folder."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from tests.docs.pages import ROOT, Block, links, split
from tests.support.commands import environment

EXAMPLE = ROOT / "deploy/examples/price-book"
README = EXAMPLE / "README.md"
BLOCKS = split(README)[1]
FIRST = "git clone https://github.com/rebaser/rebaser\n"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """The environment of the commands: `uv` is a stand-in that does not use the network, and there is no Java."""
    site, programs = tmp_path / "site", tmp_path / "programs"
    programs.mkdir()
    (programs / "uv").write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.support.offline_uv "$@"\n')
    (programs / "uv").chmod(0o755)
    return environment() | {
        "JAVA_HOME": "/nowhere",
        "MYPYPATH": str(ROOT),
        "MYPY_CACHE_DIR": str(tmp_path / "cache"),
        "OFFLINE_UV": str(site),
        "PATH": f"{programs}:{site / 'bin'}:{os.environ['PATH']}",
        "PYTEST_ADDOPTS": "-p no:cacheprovider",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": f"{site}:{ROOT}",
    }


def run(block: Block, folder: Path, env: dict[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.text],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, f"{block.name}\n{done.stdout}{done.stderr}"
    return done.stdout


@contextmanager
def server(folder: Path, env: dict[str, str]) -> Iterator[str]:
    """Run the `rebaser dev` of the README in `folder` on a free port, and without Spark, and yield its URL."""
    command = [sys.executable, "-m", "tests.support.sparkless_server", "dev", "--port", "0", "--console-port", "0"]
    with subprocess.Popen(
        [*command, "--spark", "sc://127.0.0.1:1"], cwd=folder, env=env, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield next(line.partition("=")[2].strip() for line in process.stdout if line.startswith("ready nats="))
        finally:
            process.terminate()
            process.communicate()


@pytest.mark.timeout(900)
def test_the_readme_works_from_an_empty_folder(tmp_path: Path, env: dict[str, str]) -> None:
    clone, copy, checks, dev, *session = BLOCKS
    assert (clone.text, dev.tag, dev.text) == (FIRST, "server", "uv run rebaser dev\n")
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "rebaser").symlink_to(ROOT)
    run(copy, empty, env)
    project = empty / "price-book"
    assert " passed" in run(checks, project, env)
    with server(project, env) as url:
        printed = ""
        for block in session:
            if block.language == "bash":
                printed = run(block, project, env | {"REBASER_NATS_URL": url})
            else:
                assert block.tag == "output", block.name
                shown = [line.split() for line in block.text.splitlines()]
                assert [line.split() for line in printed.splitlines()][-len(shown) :] == shown, block.name
        for margin, told in (("0.9", "more than 20%"), ("9", "price: the margin must be")):
            branch = f"wrong-{len(told)}"
            text = f"""
                uv run rebaser branch tea {branch}
                uv run rebaser enqueue tea {branch} --set product/sencha/margin={margin}
                ! uv run review-prices tea {branch} 2>&1
            """
            assert told in run(Block(README, 0, "bash", "", text), project, env | {"REBASER_NATS_URL": url})


def test_ci_runs_the_commands_of_the_readme() -> None:
    jobs = yaml.safe_load((EXAMPLE / ".github/workflows/tests.yml").read_text())["jobs"]
    steps = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert steps[:2] == ["pip install uv", f"{FIRST.strip()} ../rebaser"]
    assert steps[2:] == ["uv sync", *BLOCKS[2].text.splitlines()]


def test_what_the_readme_names_exists() -> None:
    prose = split(README)[0]
    named = [word for word in prose.replace("`", " ` ").split() if "/" in word and word.endswith((".py", ".yml"))]
    assert named
    for path in [*named, *links(README)]:
        assert (EXAMPLE / path).exists(), path
