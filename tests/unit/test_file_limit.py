"""A server raises its own limit of open files."""

import subprocess
import sys

import pytest


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
