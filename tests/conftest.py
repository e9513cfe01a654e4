"""A real nats-server for all tests, one of its own for those that kill it, and streams that no other test sees."""

import functools
import inspect
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

# Some hundred processes start in a run. Where Python may keep no bytecode beside its sources, each would compile all
# that it imports, which is seconds of work. So would this one, and those that run its tests.
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

REGISTRY.build()  # as servers and senders do: tests may decode any message on the loop

# A machine at work on something else is no defect: no example has a deadline, nor is making one ever too slow. Each run
# makes new examples: many short runs find as much as a long one.
settings.register_profile("long", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("short", settings.get_profile("long"), max_examples=35)

# Small local files: of a server that starts, of workers, whose part tests do on the loop, and credentials, which
# nats-py reads whenever it connects.
SMALL_FILES = {
    "dateutil/tz/_tzfile.py": {"_load_file"},  # once in a process: pandas, which pyarrow imports where it is installed
    "numba/core/dispatcher.py": {"compile", "_compile_for_args"},  # once on a machine
    "rebaser/dvu/compiled/loader.py": {"load", "compile_module", "is_cached"},  # once in a process
    "rebaser/dvu/fingerprint.py": {"code"},  # once in a process
    "rebaser/dvu/functions/registry.py": {"registry"},  # once in a process
    "rebaser/dvu/wire/mailbox.py": {"put", "_write", "get", "__call__", "visited_nodes"},  # a worker's, here in tests
    "rebaser/dvu/worker/structure_cache.py": {"_read", "write"},
    "rebaser/embedded/nats.py": {"embedded_nats", "find_binary", "start", "_watch"},
    "rebaser_client/nats/access.py": {"_read"},
    "nats/aio/client.py": {"_get_nkeys_seed", "_read_creds_user_jwt", "_read_creds_user_nkey"},
}

# Folders of benchmarks, since to watch takes time, and of tests that plan on the loop, which compiles and caches code.
UNWATCHED = {"benchmarks", "spark"}

# What takes longest, in this order: else it would still run in one process while the others have nothing left to do.
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

IN_TIME = 0.8  # of a test's timeout: the rest is for its fixtures


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the long form of soak, chaos and benchmark tests")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Four processes run the whole suite, since half of it waits; one runs named tests. `-n` overrules both."""
    # A shell starts what it runs in the background with SIGINT ignored, and so would be all that the tests start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    option = config.option
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS and not hasattr(config, "workerinput")
    if whole and config.pluginmanager.hasplugin("xdist") and option.numprocesses is None and not option.usepdb:
        option.numprocesses, option.dist, option.loadscopereorder = 4, "loadfile", False
        if not loader.is_cached():  # half a minute of work that all processes would begin with, each on its own
            subprocess.run([sys.executable, "-c", COMPILE], check=False, cwd=config.rootpath)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file stays together, and so do files that share what takes long to start: `spark`, halves of `acceptance`."""
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::", maxsplit=1)[0]
            folder, _, name = file.rpartition("/")
            if folder == "tests/acceptance":
                return f"{folder}/{'a-d' if name < 'test_e' else 'e-z'}"
            return folder if folder == "tests/spark" else file

    return Scheduling(config, log) if config.option.dist == "loadfile" else None


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("long" if config.getoption("--long") else "short")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # one of several processes: files are dealt out in this order
        items.sort(key=lambda item: next((at for at, one in enumerate(LONGEST) if item.nodeid.startswith(one)), 99))
    if not config.getoption("--long"):
        skip = pytest.mark.skip(reason="long: pass --long to run it")
        for item in items:
            if "long" in item.keywords:
                item.add_marker(skip)


@pytest.hookimpl(tryfirst=True, wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[Any]:
    """Cancel an asynchronous test that is about to be too late, so that it fails and what it opened is closed.

    The signal of pytest-timeout would be raised in whatever the event loop runs. The test would wait on, and with it,
    for ever, its fixtures and all tests behind it, which run in the same task.
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
    """Seconds until pytest-timeout ends it, its fixtures included; 0: never."""
    marker, given = item.get_closest_marker("timeout"), item.config.getoption("timeout")
    if marker is not None:
        given = marker.args[0]
    return float(item.config.getini("timeout") if given is None else given)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What tests have to tell, whatever became of them."""
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
    """A call of the product that blocks the event loop fails the test: it would hold up all change sets of a server.

    Looking at a file's metadata counts as no such call; structlog does so for each traceback that it shows.
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
    """Tests that do a worker's part leave nothing in its folder, and find nothing there."""
    os.environ[FOLDER_VARIABLE] = str(tmp_path_factory.mktemp("structures"))


@pytest.fixture(scope="session", autouse=True)
def nothing_left_running() -> Iterator[None]:
    """No nats-server that a test started outlives the run."""
    yield
    command = ["ps", "-o", "args=", "--ppid", str(os.getpid())]
    children = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    assert not [child for child in children if "nats-server" in child]


class Events:
    """Log events of a test, to be looked at or waited for."""

    def __init__(self) -> None:
        self.entries: list[EventDict] = []
        self._waiting: list[tuple[Callable[[EventDict], bool], anyio.Event]] = []

    def named(self, name: str) -> list[EventDict]:
        return [entry for entry in self.entries if entry["event"] == name]

    async def wait_for(self, matches: Callable[[EventDict], bool]) -> None:
        """Return when an event that `matches` is logged, from now on."""
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
    structlog.configure()  # the library is silent without
    processors = structlog.get_config()["processors"]
    processors.insert(0, events)
    yield events
    processors.remove(events)
    if not before:
        structlog.reset_defaults()


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNats]:
    """The nats-server that tests share. It runs beside the tests' event loop, so that they can be synchronous, too."""
    folder = tmp_path_factory.mktemp("nats")
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(embedded_nats(folder)) as server:
        yield server


@pytest.fixture(scope="session")
def nats_url(nats_server: EmbeddedNats) -> str:
    return nats_server.url


@pytest.fixture
async def own_nats(anyio_backend: str, tmp_path: Path) -> AsyncIterator[EmbeddedNats]:
    """A nats-server of this test's own, to be killed and started again."""
    async with embedded_nats(tmp_path / "nats") as server:
        yield server


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes that tests share; see `cluster`."""
    folder = tmp_path_factory.mktemp("cluster")
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(cluster_in(folder)) as cluster:
        yield cluster


@pytest.fixture
async def cluster(anyio_backend: str, shared_cluster: Cluster) -> AsyncIterator[Cluster]:
    """Three nodes that form a cluster, whole and empty: a test may end them as it likes."""
    await shared_cluster.restore()
    yield shared_cluster
    await shared_cluster.restore()
    await shared_cluster.delete_streams()


@pytest.fixture
def unused_port() -> int:
    """A port on loopback where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
async def connection(anyio_backend: str, nats_url: str) -> AsyncIterator[Connection]:
    async with Connection.connect(nats_url, name="test") as connection:
        yield connection


@pytest.fixture
async def js(connection: Connection) -> JetStream:
    return JetStream(connection)


@pytest.fixture
def subjects() -> Subjects:
    """Names that no other test uses."""
    return Subjects(f"t{secrets.token_hex(6)}")


@pytest.fixture
async def topology(js: JetStream, subjects: Subjects) -> AsyncIterator[TopologyOptions]:
    """The streams of `subjects`, gone again after the test."""
    options = TopologyOptions()
    await ensure_topology(js, subjects, options)
    yield options
    for config in streams(subjects, options):
        await js.delete_stream(config["name"])
