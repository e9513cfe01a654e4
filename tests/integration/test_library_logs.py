"""The library logs nothing until the application configures logging, in either of two ways."""

import asyncio
import sys

import pytest

pytestmark = pytest.mark.anyio

PROGRAM = """
import asyncio, sys
from rebaser_client import RebaserClient

async def main():
    async with RebaserClient.connect(sys.argv[1]):
        pass

{setup}
asyncio.run(main())
"""


async def output(url: str, setup: str) -> tuple[str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", PROGRAM.format(setup=setup), url),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err
    return out.decode(), err.decode()


async def test_a_program_that_configured_nothing_has_its_output_for_itself(nats_url: str) -> None:
    assert await output(nats_url, "") == ("", "")


async def test_warnings_are_silent_as_well() -> None:
    """Python would otherwise write warnings of loggers without a handler to stderr."""
    setup = "from rebaser_client.logs import get_logger; get_logger('rebaser_client.x').warning('lost', seq=1)"
    program = f"{setup}; import logging; logging.getLogger('other').warning('heard')"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert await process.communicate() == (b"", b"heard\n")


async def test_events_go_where_standard_logging_is_configured_to(nats_url: str) -> None:
    setup = "import logging; logging.basicConfig(level=logging.DEBUG, format='%(levelname)s %(name)s %(message)s')"
    out, err = await output(nats_url, setup)
    assert out == ""
    assert "DEBUG rebaser_client.nats.connection nats_closed name='rebaser-client'" in err.splitlines()


async def test_events_go_where_structlog_is_configured_to(nats_url: str) -> None:
    setup = (
        "import structlog; structlog.configure(processors=[structlog.processors.add_log_level, "
        "structlog.processors.JSONRenderer(sort_keys=True)], logger_factory=structlog.PrintLoggerFactory(sys.stderr))"
    )
    out, err = await output(nats_url, setup)
    assert out == ""
    assert '{"event": "nats_closed", "level": "debug", "name": "rebaser-client"}' in err.splitlines()
