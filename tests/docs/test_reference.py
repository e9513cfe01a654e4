"""The generated pages are what their generator makes now."""

import json
import subprocess
import sys

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
    for page, text in json.loads(made.stdout).items():
        with open(page) as file:  # noqa: PTH123 - its name came as text
            assert file.read() == text, f"{page} is out of date: {COMMAND}"
