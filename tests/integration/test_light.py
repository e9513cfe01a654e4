"""Clients need none of the packages of servers and Spark, and say what to install where they do."""

import ast
import asyncio
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement

import rebaser_client
from rebaser_core.streams.subjects import Subjects
from tests.support import sources

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
BASE = {
    "anyio", "cbor2", "msgspec", "nats-py", "numpy", "pyarrow", "pydantic", "rich", "structlog", "typer",
}  # fmt: skip
# Modules that only extras and the tests install.
LEFT_OUT = (
    "_pytest", "cel_expr_python", "google", "grpc", "llvmlite", "numba", "obstore", "opentelemetry", "packaging",
    "pandas", "pyspark", "starlette", "uvicorn", "uvloop",
)  # fmt: skip
BARE = f"""
import sys

class Without:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, *more):
        return None if name.partition(".")[0] in {LEFT_OUT!r} else self.finder.find_spec(name, *more)

sys.meta_path[:] = map(Without, sys.meta_path)
"""
PROGRAM = """
import asyncio
from pathlib import Path

from rebaser_client import Derive, RebaserClient, Set, UnprocessableError
from rebaser_core.checkpoint import read_checkpoint

async def main(url, prefix, checkpoint):
    async with RebaserClient.connect(url, prefix=prefix) as client:
        await client.enqueue_updates("ws", "cs", [Set("a", 1), Derive("b", "cel", {"a": "a"}, {"expr": "a + 1"})])
        try:
            await client.enqueue_updates("ws", "cs", [Derive("t", "round", {"v": "a"}, {"digit": 1})])
        except UnprocessableError as error:
            print(error.message)
        print(await client.exists("ws", "cs"), await client.values("ws", "cs"))
    print(len(read_checkpoint(Path(checkpoint).read_bytes()).values()) > 5)

asyncio.run(main(*sys.argv[1:]))
"""
COMMAND = """
from rebaser.cli import main

main()
"""
CONSOLE = """
import sys

from rebaser.cli import main, runner
from rebaser.console.reading.states import import_reader

def run_async(work, daemon):
    import_reader()
    print("pyarrow" in sys.modules, "pandas" in sys.modules)
    return 0

runner.run_async = run_async
main()
"""
LIGHT = {  # commands, with the slow imports that each needs
    ("--help",): set(),
    ("dlq", "list", "--help"): {"pydantic"},
    ("ping", "--timeout", "0.1"): {"pydantic", "nats"},
    ("enqueue", "ws", "cs", "--set", "a=1", "--wait", "none"): {"pydantic", "nats"},
    ("list",): {"pydantic", "nats"},
    ("status",): {"pydantic", "nats"},
    ("dlq", "list"): {"pydantic", "nats"},
    ("tail", "ws", "cs"): {"pydantic", "nats"},
    ("get", "ws", "cs"): {"pydantic", "nats", "numpy"},
}
SLOW = [
    "aiohttp.client", "nats", "nats.js.client", "numpy", "pandas", "pyarrow", "pydantic", "pydantic_settings", "rich",
    "rebaser.settings", "structlog", *set(LEFT_OUT) - {"uvloop"},
]  # fmt: skip
LOADED = f"""
import os
import sys

def report():
    sys.stdout.flush()
    print(*sorted(name for name in {SLOW!r} if name in sys.modules), file=sys.stderr)

import atexit
atexit.register(report)

from rebaser.cli import main

main()
"""

COUNT_THREADS = """
import atexit
import os
import sys
from pathlib import Path

from rebaser.cli import main

def report():
    names = [Path("/proc/self/task", one, "comm").read_text().strip() for one in os.listdir("/proc/self/task")]
    print("numpy" in sys.modules, *names, file=sys.stderr)

atexit.register(report)
os.environ.pop("OPENBLAS_NUM_THREADS", None)
main()
"""


async def bare(program: str, *arguments: str) -> tuple[int | None, str, str]:
    """Run a program with only the base installation, and return its exit code, stdout and stderr."""
    return await run(BARE + program, *arguments)


async def run(program: str, *arguments: str) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", program, *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


def test_the_base_install_is_what_a_client_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {Requirement(one).name for one in project["dependencies"]} == BASE


@pytest.mark.usefixtures("topology")
async def test_a_program_enqueues_and_reads_with_the_base_install(nats_url: str, subjects: Subjects) -> None:
    checkpoint = ROOT / "tests" / "wire" / "golden" / "Checkpoint.v2.compressed.arrow"
    refused = "update 0 of 't': round has no parameter 'digit'; did you mean digits?"
    assert await bare(PROGRAM, nats_url, subjects.prefix, str(checkpoint)) == (0, f"{refused}\nTrue {{}}\nTrue\n", "")


@pytest.mark.usefixtures("topology")
async def test_commands_that_talk_to_servers_do_with_the_base_install(nats_url: str, subjects: Subjects) -> None:
    where = ("--nats", nats_url, "--prefix", subjects.prefix)
    code, out, err = await bare(COMMAND, "enqueue", "ws", "cs", "--set", "a=1", "--wait", "none", *where)
    assert (code, err) == (0, "")
    assert "1 update" in out
    assert await bare(COMMAND, "get", "ws", "cs", *where) == (
        0,
        "",
        "ws/cs has no values yet; `rebaser explain ws cs` says why its requests wait\n",
    )
    code, out, _ = await bare(COMMAND, "status", *where)
    assert (code, "ws" in out) == (0, True)


@pytest.mark.usefixtures("topology")
@pytest.mark.parametrize("arguments", LIGHT)
async def test_a_command_imports_nothing_slow_that_it_does_not_need(
    arguments: tuple[str, ...], nats_url: str, subjects: Subjects
) -> None:
    where = () if "--help" in arguments else ("--nats", nats_url, "--prefix", subjects.prefix)
    code, _, err = await run(LOADED, *arguments, *where)
    fails = arguments[0] == "get" or "ping" in arguments  # no change set exists, and no server answers
    assert (code, set(err.splitlines()[-1].split())) == (int(fails), LIGHT[arguments])


@pytest.mark.usefixtures("topology")
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
async def test_numpy_starts_no_threads_in_a_command(nats_url: str, subjects: Subjects) -> None:
    _, _, err = await run(COUNT_THREADS, "get", "ws", "cs", "--nats", nats_url, "--prefix", subjects.prefix)
    numpy, *threads = err.splitlines()[-1].split()
    assert (numpy, len(threads)) == ("True", 1)


async def test_the_console_reads_checkpoints_without_pandas_although_it_is_installed() -> None:
    assert await run(CONSOLE, "console") == (0, "True False\n", "")


async def test_the_client_imports_nothing_slow_before_it_is_used() -> None:
    names = f"[name for name in {[*SLOW, 'anyio', 'asyncio']!r} if name in sys.modules]"
    assert await run(f"import sys, rebaser_client; print({names})") == (0, "[]\n", "")
    code, out, err = await run(f"import sys; from rebaser_client import RebaserClient, Set; print({names})")
    assert (code, err) == (0, "")
    from_nats_py = {"aiohttp.client", "nats.js.client"}
    assert set(ast.literal_eval(out)) - from_nats_py == {"anyio", "asyncio", "nats", "pydantic"}


def test_each_name_of_the_client_is_imported_from_where_type_checkers_see_it() -> None:
    seen = {name: module for module, name in sources.imported_names("rebaser_client") if module.startswith("rebaser")}
    assert seen == rebaser_client._MODULES
    assert set(rebaser_client.__all__) == set(seen) <= set(dir(rebaser_client))
    for name in seen:
        assert getattr(rebaser_client, name).__class__ is not ModuleType
    with pytest.raises(AttributeError, match="'rebaser_client' has no attribute 'Nothing'"):
        rebaser_client.Nothing  # noqa: B018


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("functions",), "this command needs cel_expr_python, which is not installed: pip install 'rebaser[server]'"),
        (("enqueue", "a", "b", "--derive", "x=a+1"), "this command needs cel_expr_python, which is not installed"),
        (("demo",), "pip install 'rebaser[server]'"),
        (("dev", "--data", "/nowhere"), "pip install 'rebaser[server]'"),
        (("serve",), "pip install 'rebaser[server]'"),
        (("console",), "pip install 'rebaser[console]'"),
    ],
)
async def test_commands_that_need_more_say_what_to_install(arguments: tuple[str, ...], says: str) -> None:
    code, out, err = await bare(COMMAND, *arguments)
    assert (code, out) == (1, "")
    assert says in err
    assert "Traceback" not in err


async def test_the_library_says_what_to_install() -> None:
    code, _, err = await bare("import rebaser_client.spark")
    assert (code, err.splitlines()[-1]) == (
        1,
        "ModuleNotFoundError: rebaser_client.spark needs PySpark: pip install 'rebaser[spark]'",
    )
    code, _, err = await bare(
        "from rebaser_client.blobs import open_blobs\nopen_blobs('s3://x/y', None, '')",
    )
    assert err.splitlines()[-1].endswith("ConfigError: this blob store requires obstore: pip install 'rebaser[blobs]'")


def test_bounds_admit_what_is_installed_and_what_pypi_has_of_the_client_alone() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    named = ("server", "spark", "blobs", "console", "tracing")
    for line in [*project["dependencies"], *(line for name in named for line in extras[name])]:
        wanted = Requirement(line)
        if wanted.name != "rebaser":
            assert wanted.specifier.contains(version(wanted.name)), line
    [client] = [one for line in extras["spark-client"] if (one := Requirement(line)).name == "pyspark-client"]
    assert client.specifier.contains("4.2.0")  # the newest release, and the one in `tests/spark/test_client_only.py`
    assert [one for one in project["classifiers"] if one.startswith("Framework")] == ["Framework :: AsyncIO"]
