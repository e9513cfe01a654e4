"""The generated pages equal the present output of their generator."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import COMMAND, ROOT

GENERATED = """
import json
from tests.docs.generate import pages
print(json.dumps({str(page): text for page, text in pages().items()}))
"""


def test_generated_pages_are_current() -> None:
    """The pages are generated in a new process, because help texts depend on the environment."""
    made = subprocess.run([sys.executable, "-c", GENERATED], cwd=ROOT, capture_output=True, text=True, check=True)
    stale = [page for page, text in json.loads(made.stdout).items() if Path(page).read_text() != text]
    if stale:  # not an assertion, because pytest would print both texts in full
        pytest.fail(f"out of date: {', '.join(stale)}; renew with: {COMMAND}", pytrace=False)
