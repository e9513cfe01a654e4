"""The generated pages are what their generator makes now."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.generate import COMMAND
from tests.docs.pages import ROOT

GENERATED = """
import json
from tests.docs.generate import pages
print(json.dumps({str(page): text for page, text in pages().items()}))
"""


def test_generated_pages_are_current() -> None:
    """Made in a process of its own: help depends on the environment."""
    made = subprocess.run([sys.executable, "-c", GENERATED], cwd=ROOT, capture_output=True, text=True, check=True)
    stale = [page for page, text in json.loads(made.stdout).items() if Path(page).read_text() != text]
    if stale:  # no assertion: pytest would show all of both texts
        pytest.fail(f"out of date: {', '.join(stale)}; renew with: {COMMAND}", pytrace=False)
