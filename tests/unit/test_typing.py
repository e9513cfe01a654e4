"""The types of the library in a user's program, under `mypy --strict` with no configuration."""

import subprocess
import sys
from pathlib import Path

import pytest

import rebaser_client
from rebaser_client import errors

ROOT = Path(__file__).parents[2]

WRONG = """
from rebaser_client import BlockingRebaserClient, Derive, Ref, RebaserClient, Set, Template, Update

updates: list[Update] = [Set("a", object()), Set("b", {1}), Set(1, 1), {"op": "set"}]

async def main(client: RebaserClient) -> None:
    await client.enqueue_updates_with_reply("ws", "cs", updates, wait="bogus")
    await RebaserClient.open(prefx="x")

PRICE = Ref("price", float)
PRICE.set("9.5")
PRICE.derive("sum", {"x": 1})

async def read(client: RebaserClient, blocking: BlockingRebaserClient) -> None:
    text: str = await client.get("ws", "cs", PRICE)
    text = blocking.get("ws", "cs", PRICE)
    wrong: Ref[int] = PRICE

Set(PRICE, "9.5")
Derive("a", "f", {"x": 1})
Set(Template("a/{b}", int).ref(b=1), "x")
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which mypy caches the types of the library, because checking them takes ten seconds."""
    return tmp_path_factory.mktemp("cache")


def mypy(program: Path, folder: Path, cache: Path) -> list[str]:
    """Return the output of mypy."""
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary"]
    done = subprocess.run(
        [*command, f"--cache-dir={cache}", str(program)],
        cwd=folder,
        env={"MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return [line for line in done.stdout.splitlines() if line.startswith(program.name) or str(program) in line]


def test_a_program_of_a_user_is_well_typed(tmp_path: Path, cache: Path) -> None:
    assert mypy(ROOT / "tests" / "typing" / "program.py", tmp_path, cache) == []


def test_what_is_wrong_is_found(tmp_path: Path, cache: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(WRONG)
    found = [line.split(":")[1] for line in mypy(program, tmp_path, cache) if ": error:" in line]
    assert found == ["4", "4", "4", "4", "7", "8", "11", "12", "15", "16", "17", "19", "20", "21"]


def test_all_errors_of_the_client_are_exported() -> None:
    raised = {name for name, one in vars(errors).items() if isinstance(one, type) and issubclass(one, Exception)}
    assert raised - set(rebaser_client.__all__) <= {"Disposition"}
    assert sorted(rebaser_client.__all__) == rebaser_client.__all__


def test_all_errors_are_documented() -> None:
    guide = (ROOT / "deploy" / "docs" / "client.md").read_text()
    for name in rebaser_client.__all__:
        one = getattr(rebaser_client, name)
        if isinstance(one, type) and issubclass(one, Exception):
            assert f"`{name}`" in guide, name
