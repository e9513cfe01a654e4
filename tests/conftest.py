"""Fixtures for all tests: a shared nats-server, a separate one for tests that kill it, and streams that no other test
uses. Also the order of the tests and their limits of time."""

import functools
import inspect
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any
from zlib import crc32

# A run starts some hundred processes. If Python may not write bytecode next to the sources, each process would compile
# all modules that it imports, which takes seconds. So this process and its children write bytecode to a separate
# folder.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    os.environ["PYTHONPYCACHEPREFIX"] = str(Path(__file__).parents[1] / ".pytest_cache" / "bytecode")
    sys.dont_write_bytecode, sys.pycache_prefix = False, os.environ["PYTHONPYCACHEPREFIX"]

import anyio
import pytest
import structlog
from anyio.from_thread import start_blocking_portal
from blockbuster import blockbuster_ctx
from hypothesis import HealthCheck, settings
from structlog.typing import EventDict

from rebaser.dvu.compiled import loader
from rebaser.dvu.worker.structure_cache import FOLDER_VARIABLE
from rebaser.embedded.nats import EmbeddedNats, embedded_nats
from rebaser_client.admin.provisioning import ensure_topology
from rebaser_client.jetstream import Connection, JetStream
from rebaser_core.messages import REGISTRY
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import TopologyOptions, streams
from tests.support.cluster import Cluster, cluster_in
from tests.support.draws import VARIABLE, choose_seed, drawing
from tests.support.ports import free_ports

# Servers and senders also build this at start. Without it, the first decoder on an event loop would build it there.
REGISTRY.build()

# A busy machine is not a defect, so no example has a deadline and no strategy counts as too slow. Each run makes new
# examples, so that many short runs find as much as a long run.
settings.register_profile("long", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("short", settings.get_profile("long"), max_examples=25)

# Functions that may read and write files on the event loop, because the files are small. They run when a server starts,
# in workers (whose code tests run on the loop), and when nats-py reads credentials for a connection.
SMALL_FILES = {
    "dateutil/tz/_tzfile.py": {"_load_file"},  # once in a process, when pyarrow imports pandas
    "numba/core/dispatcher.py": {"compile", "_compile_for_args"},  # once on a machine
    "rebaser/dvu/compiled/loader.py": {"load", "compile_module", "is_cached"},  # once in a process
    "rebaser/dvu/fingerprint.py": {"code"},  # once in a process
    "rebaser/dvu/functions/registry.py": {"installed"},  # once in a process
    # Code of workers, which tests run on the loop.
    "rebaser/dvu/wire/mailbox.py": {"put", "_write", "get", "__call__", "visited_nodes", "running_function"},
    "rebaser/dvu/worker/structure_cache.py": {"_read", "write"},
    "rebaser/embedded/nats.py": {"embedded_nats", "find_binary", "start", "_watch"},
    "rebaser_client/nats/access.py": {"_read"},
    "nats/aio/client.py": {"_get_nkeys_seed", "_read_creds_user_jwt", "_read_creds_user_nkey"},
}

# Folders whose tests may block the event loop: watching would slow benchmarks down, and some Spark tests compile code
# while they plan on the loop.
UNWATCHED = {"benchmarks", "spark"}

# The folders whose tests take longest, in the order in which they begin. If they began last, one process would still
# run them while the other processes have nothing to do.
LONGEST = (
    "tests/spark/",
    "tests/acceptance/",
    "tests/simulation/",
    "tests/chaos/",
    "tests/benchmarks/",
    "tests/property/",
)

COMPILE = (
    "from rebaser.dvu.compiled import loader; from rebaser.dvu.planning import warm_up; loader.load(); warm_up.warm()"
)

IN_TIME = 0.8  # share of a test's timeout; the rest is for its fixtures


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long", action="store_true", help="also run the tests marked as long, with more examples of each property"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Run the whole suite in four processes, because half of it waits, and named tests in one. The option `-n`
    overrides this."""
    # A shell starts background jobs with SIGINT ignored, and child processes inherit that. Tests send SIGINT to theirs.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    option = config.option
    seed = choose_seed(os.environ)
    if getattr(option, "hypothesis_seed", seed) is None:  # with `-p no:hypothesispytest`, there is no such option
        option.hypothesis_seed = seed
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS and not hasattr(config, "workerinput")
    if whole and config.pluginmanager.hasplugin("xdist") and option.numprocesses is None and not option.usepdb:
        option.numprocesses, option.dist, option.loadscopereorder = 4, "loadfile", False
        compile_first(config.rootpath)


def compile_first(root: Path) -> None:
    """Compile what is not compiled yet. Otherwise, each of the four processes would do it: half a minute for Numba, and
    a quarter of one for bytecode."""
    commands = [] if loader.is_cached() else [[sys.executable, "-c", COMPILE]]
    last = max((root / "tests").rglob("test_*.py"))
    compiled = Path(cache_from_source(str(last))).parent
    if not any(compiled.glob(f"{last.stem}.*-pytest-*.pyc")):  # pytest's own, with its assertions
        folders = sorted({str(path.parent) for path in (root / "tests").glob("*/test_*.py")})
        collect = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-p", "no:cacheprovider"]
        commands += [[*collect, *folders[::2]], [*collect, *folders[1::2]]]
    running = [subprocess.Popen(command, cwd=root, stdout=subprocess.DEVNULL) for command in commands]
    for process in running:
        process.wait()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep a file in one process, and also files that share something slow to start: all of `spark`, and each half of
    `acceptance`."""
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::", maxsplit=1)[0]
            folder, _, name = file.rpartition("/")
            if folder == "tests/acceptance":
                return f"{folder}/{'a-d' if name < 'test_e' else 'e-z'}"
            return folder if folder == "tests/spark" else file

    return Scheduling(config, log) if config.option.dist == "loadfile" else None


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell each process whether the run is a whole one, which draws half of the benchmarks."""
    config = node.config
    node.workerinput["half"] = config.args_source is pytest.Config.ArgsSource.TESTPATHS and not config.option.long


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("long" if config.getoption("--long") else "short")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # In a worker of pytest-xdist, files are distributed in this order.
        items.sort(key=lambda item: next((at for at, one in enumerate(LONGEST) if item.nodeid.startswith(one)), 99))
    if not config.getoption("--long"):
        half = drawing("half of the benchmarks").randrange(2)
        other = pytest.mark.skip(reason="benchmark: each whole run draws half of them")
        # Half of the files, because the short forms only show that the benchmarks still work.
        for item in items if getattr(config, "workerinput", {}).get("half") else ():
            if "bench" in item.keywords and crc32(item.path.name.encode()) % 2 != half:
                item.add_marker(other)
        skip = pytest.mark.skip(reason="long: pass --long to run it")
        for item in items:
            if "long" in item.keywords:
                item.add_marker(skip)


@pytest.hookimpl(tryfirst=True, wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[Any]:
    """Cancel an asynchronous test shortly before its timeout, so that the test fails and everything that it opened is
    closed.

    The signal of pytest-timeout would be raised in whatever code the event loop is running. The test would then wait
    for ever, and so would its fixtures and all later tests, which run in the same task.
    """
    test, bound = pyfuncitem.obj, IN_TIME * timeout_of(pyfuncitem)
    if bound and inspect.iscoroutinefunction(test):

        @functools.wraps(test)
        async def bounded(*args: Any, **named: Any) -> None:
            with anyio.fail_after(bound):
                await test(*args, **named)

        pyfuncitem.obj = bounded
    return (yield)


def timeout_of(item: pytest.Item) -> float:
    """Return the seconds after which pytest-timeout ends the test, including its fixtures; 0 if there is no limit."""
    marker, given = item.get_closest_marker("timeout"), item.config.getoption("timeout")
    if marker is not None:
        given = marker.args[0]
    return float(item.config.getini("timeout") if given is None else given)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the seed of the run, and the texts that tests recorded with the property `told`, whether they passed or
    failed."""
    terminalreporter.write_line(f"what tests drew follows from the seed {VARIABLE}={choose_seed(os.environ)}")
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, text in getattr(report, "user_properties", ()):
                if name == "told" and report.when == "call":
                    terminalreporter.write_line(text)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def nothing_blocks_the_loop(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the test if the product blocks the event loop, because that would delay all change sets of a server.

    Reading a file's metadata is allowed: structlog does so for each traceback that it shows.
    """
    folder = request.path.parent.name
    if "anyio" not in request.keywords or folder in UNWATCHED:
        yield
        return
    with blockbuster_ctx(["rebaser_core", "rebaser_client", "rebaser"]) as found:
        for name, function in found.functions.items():
            if name.startswith("os.") and name not in {"os.read", "os.write", "os.sendfile"}:
                function.deactivate()
            elif name == "threading.Lock.acquire":  # a server that stops joins its watchdog thread
                function.can_block_in("rebaser/runtime/watchdog.py", {"watched_loop"})
            elif name.startswith("io."):
                for file, functions in SMALL_FILES.items():
                    function.can_block_in(file, functions)
        yield


@pytest.fixture(scope="session", autouse=True)
def structures_of_their_own(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Give tests that run a worker's code a cache folder of their own, which is empty at first."""
    os.environ[FOLDER_VARIABLE] = str(tmp_path_factory.mktemp("structures"))


@pytest.fixture(scope="session", autouse=True)
def nothing_left_running() -> Iterator[None]:
    """Check at the end of the run that no nats-server that a test started is still running."""
    yield
    command = ["ps", "-o", "args=", "--ppid", str(os.getpid())]
    children = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    assert not [child for child in children if "nats-server" in child]


class Events:
    """The log events of a test, to read or to wait for."""

    def __init__(self) -> None:
        self.entries: list[EventDict] = []
        self._waiting: list[tuple[Callable[[EventDict], bool], anyio.Event]] = []

    def named(self, name: str) -> list[EventDict]:
        return [entry for entry in self.entries if entry["event"] == name]

    async def wait_for(self, matches: Callable[[EventDict], bool]) -> None:
        """Return when an event for which `matches` returns true is logged after this call."""
        heard = anyio.Event()
        self._waiting.append((matches, heard))
        await heard.wait()

    def __call__(self, _: object, __: str, entry: EventDict) -> EventDict:
        self.entries.append(dict(entry))
        for matches, heard in self._waiting:
            if matches(entry):
                heard.set()
        return entry


@pytest.fixture
def events() -> Iterator[Events]:
    events = Events()
    before = structlog.is_configured()
    structlog.configure()  # without this, the library logs nothing
    processors = structlog.get_config()["processors"]
    processors.insert(0, events)
    yield events
    processors.remove(events)
    if not before:
        structlog.reset_defaults()


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNats]:
    """The nats-server that tests share. Its event loop runs in a thread of its own, so synchronous tests can use it,
    too."""
    folder = tmp_path_factory.mktemp("nats")
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(embedded_nats(folder)) as server:
        yield server


@pytest.fixture(scope="session")
def nats_url(nats_server: EmbeddedNats) -> str:
    return nats_server.url


@pytest.fixture
async def own_nats(anyio_backend: str, tmp_path: Path) -> AsyncIterator[EmbeddedNats]:
    """A nats-server for one test, which may kill and restart it."""
    async with embedded_nats(tmp_path / "nats", *free_ports(1)) as server:
        yield server


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three NATS nodes that tests share through the fixture `cluster`."""
    folder = tmp_path_factory.mktemp("cluster")
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(cluster_in(folder)) as cluster:
        yield cluster


@pytest.fixture
async def cluster(anyio_backend: str, shared_cluster: Cluster) -> AsyncIterator[Cluster]:
    """A complete cluster of three nodes without streams. A test may end its nodes: they are restored afterwards."""
    await shared_cluster.restore()
    yield shared_cluster
    await shared_cluster.restore()
    await shared_cluster.delete_streams()


@pytest.fixture
def unused_port() -> int:
    """A port on loopback on which no process listens."""
    [port] = free_ports(1)
    return port


@pytest.fixture
async def connection(anyio_backend: str, nats_url: str) -> AsyncIterator[Connection]:
    async with Connection.connect(nats_url, name="test") as connection:
        yield connection


@pytest.fixture
async def js(connection: Connection) -> JetStream:
    return JetStream(connection)


@pytest.fixture
def subjects() -> Subjects:
    """Subjects with a prefix that no other test uses."""
    return Subjects(f"t{secrets.token_hex(6)}")


@pytest.fixture
async def topology(js: JetStream, subjects: Subjects) -> AsyncIterator[TopologyOptions]:
    """The streams of `subjects`, which are deleted after the test."""
    options = TopologyOptions()
    await ensure_topology(js, subjects, options)
    yield options
    for config in streams(subjects, options):
        await js.delete_stream(config["name"])
