"""One embedded Spark for all tests that need one: it takes seconds to start, and a gigabyte of memory."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

import anyio
import pytest

from rebaser.dvu.spark.engine import Engine, EngineSettings
from rebaser.embedded.spark import Jvm, spark_master


@pytest.fixture(scope="session")
async def engine(anyio_backend: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engine]:
    """The shared engine, after its first job. It uses a Spark that was begun before it, as commands begin theirs."""
    folder = tmp_path_factory.mktemp("spark")
    before = set(Path.cwd().iterdir())
    tasks = 2
    jvm = Jvm(spark_master("local[*]", tasks), memory="1g", scratch=folder)
    jvm.start_in_background()
    async with Engine("local[*]", EngineSettings(scratch=folder, parallelism=tasks, jvm=jvm)) as engine:
        with anyio.fail_after(240):
            await engine.ready.wait()
        assert engine._sessions._jvm is jvm
        assert jvm.alive
        assert jvm.mailboxes is not None
        assert jvm.mailboxes.parent.parent == folder
        yield engine
    assert not jvm.alive
    jvm.stop()  # type: ignore[unreachable] # a second time
    assert not any(folder.iterdir()), "Spark left files behind"
    new = {path.name for path in set(Path.cwd().iterdir()) - before}
    assert not new & {"spark-warehouse", "artifacts", "metastore_db", "derby.log"}


@pytest.fixture
def url(engine: Engine) -> str:
    """The URL of the shared Spark, for tests with an engine of their own."""
    jvm = engine._sessions._jvm
    assert jvm is not None
    return jvm.url


@pytest.fixture
def jvm_pid(engine: Engine) -> int:
    jvm = engine._sessions._jvm
    assert jvm is not None
    assert jvm._process is not None
    return jvm._process.pid


Down: TypeAlias = Callable[[str], Awaitable[str]]


@pytest.fixture
def down() -> Down:
    """A function that returns why an engine cannot use the Spark at a URL."""

    async def reason(url: str) -> str:
        with anyio.fail_after(240):
            async with Engine(url, EngineSettings(parallelism=1)) as engine:
                while not engine.state.startswith("down: "):  # noqa: ASYNC110 - it is a word for people
                    await anyio.sleep(0.02)
                return engine.state.removeprefix("down: ")

    return reason
