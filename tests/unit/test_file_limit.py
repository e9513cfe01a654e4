"""A server raises its own limit of open files."""

import subprocess
import sys

import pytest

from rebaser import serving


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
def test_a_server_may_open_as_many_files_as_the_system_allows() -> None:
    program = """
import resource
from rebaser import serving

_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
wanted = min(serving.MAX_FILES if hard == resource.RLIM_INFINITY else hard, serving.MAX_FILES)
resource.setrlimit(resource.RLIMIT_NOFILE, (wanted // 2, hard))
serving._raise_file_limit()
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (wanted, hard)
serving._raise_file_limit()
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (wanted, hard)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
def test_a_system_that_accepts_less_than_it_says_gets_less(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    given: list[tuple[int, int]] = []

    def accept(_: int, limits: tuple[int, int]) -> None:
        if limits[0] > serving.MAX_FILES_MACOS:
            raise ValueError("current limit exceeds maximum limit")
        given.append(limits)

    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", accept)
    serving._raise_file_limit()
    assert given == [(serving.MAX_FILES_MACOS, resource.RLIM_INFINITY)]
