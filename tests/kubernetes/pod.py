"""Runs a rendered container without Kubernetes: the image is this checkout, and the test acts as the kubelet.

The process sees what it would see in the container: a root file system that it may not write to, empty folders where
the pod mounts them, the files of its Secrets, only the environment of the image and of the pod, the user of the pod,
and no capability.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import anyio
import pytest

from tests.docs.pages import ROOT
from tests.kubernetes.chart import NAME, Object, Rendered
from tests.support.fleet import ServerProcess

Secrets: TypeAlias = Mapping[str, Mapping[str, str]]

# Makes the root file system at $1, and runs the other arguments in it, in the same process.
MAKE_ROOT = r"""
set -eu
root=$1; shift
share() { mkdir -p "$root$1"; mount --rbind "$1" "$root$1"; mount -o remount,bind,ro "$root$1"; }
mount -t tmpfs -o mode=755 pod "$root"
for folder in /usr /bin /sbin /lib /lib64; do
  if [ -L "$folder" ]; then cp -P "$folder" "$root/"; elif [ -e "$folder" ]; then share "$folder"; fi
done
for folder in $SHARED; do share "$folder"; done
for folder in /proc /dev; do mkdir "$root$folder"; mount --rbind "$folder" "$root$folder"; done
for folder in $EMPTY; do mkdir -p "$root$folder"; mount -t tmpfs -o mode=1777 empty "$root$folder"; done
mkdir -p "$root$WORKING" "$root/opt/image"
ln -s "$PREFIX" "$root/opt/rebaser"
cp "$REPOSITORY/deploy/entrypoint" "$root/opt/image/rebaser-entrypoint"
cp "$REPOSITORY/deploy/healthcheck" "$root/opt/image/rebaser-healthcheck"
[ -e /usr/bin/tini ] || printf '#!/bin/sh\nshift\nexec "$@"\n' > "$root/opt/image/tini"
chmod 755 "$root"/opt/image/*
cp -a /etc "$root/"
echo "rebaser:x:$USER_ID:$GROUP_ID::/var/lib/rebaser:/bin/sh" >> "$root/etc/passwd"
(cd "$SECRETS"; find . -type f -exec install -D -m 440 -g "$GROUP_ID" {} "$root/{}" \;)
mount -o remount,ro "$root"
exec chroot "$root" setpriv --reuid "$USER_ID" --regid "$GROUP_ID" --clear-groups --inh-caps=-all --bounding-set=-all \
  --no-new-privs "$@"
"""


def _can_isolate() -> bool:
    if os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("setpriv"):
        return False
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0  # noqa: PLW1510


needs_namespaces = pytest.mark.skipif(not _can_isolate(), reason="needs root, unshare and setpriv, to run a pod")


def image_line(word: str) -> list[str]:
    """Return the command in brackets after `ENTRYPOINT`, or after the `CMD` of a health check."""
    [found] = re.findall(rf"{word} (\[.+\])$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    return json.loads(found)  # type: ignore[no-any-return]


def image_environment() -> dict[str, str]:
    [block] = re.findall(r"^ENV ((?:.+\\\n)*.+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    return dict(part.split("=", 1) for part in shlex.split(block.replace("\\\n", " ")))


class Pod:
    """A running container of a Deployment of the chart. `secrets` has the contents of the Secrets that it mounts, by
    the name of the Secret and the key."""

    def __init__(self, rendered: Rendered, name: str, folder: Path, secrets: Secrets | None = None) -> None:
        self.container = rendered.container(name)
        self._spec = rendered.pod(name)
        environment = image_environment() | rendered.environment(name)
        environment["PATH"] = f"/opt/image:{environment['PATH']}"
        self._environment = environment
        self._folder = folder
        self._secrets = folder.with_name("secrets")
        self._write_secrets(secrets or {})
        self.process: ServerProcess

    def _write_secrets(self, secrets: Secrets) -> None:
        """Write the files of the Secrets that the pod mounts into a folder, which `MAKE_ROOT` copies to its root."""
        self._secrets.mkdir()
        for volume in self._spec["volumes"]:
            for item in volume.get("secret", {}).get("items", ()):
                [mount] = [one for one in self.container["volumeMounts"] if one["name"] == volume["name"]]
                file = self._secrets / mount["mountPath"].lstrip("/") / item["path"]
                file.parent.mkdir(parents=True)
                file.write_text(secrets[volume["secret"]["secretName"]][item["key"]])

    def port(self, name: str) -> int:
        [port] = [port["containerPort"] for port in self.container["ports"] if port["name"] == name]
        return int(port)

    def command(self, *arguments: str) -> list[str]:
        """Return the command line that runs `arguments` as the container would."""
        variables = [f"{name}={value}" for name, value in self._environment.items()]
        working = self.container.get("workingDir", "/var/lib/rebaser")
        inside = ["env", "-i", "-C", working, *variables, *arguments]
        return ["unshare", "--mount", "--propagation=private", "sh", "-c", MAKE_ROOT, "pod", str(self._folder), *inside]

    def outside(self) -> dict[str, str]:
        """Return the variables that `MAKE_ROOT` needs."""
        security = self._spec["securityContext"]
        [empty] = [volume["name"] for volume in self._spec["volumes"] if "emptyDir" in volume]
        mounts = [one["mountPath"] for one in self.container["volumeMounts"] if one["name"] == empty]
        assert self.container["securityContext"]["readOnlyRootFilesystem"]
        return {
            "PATH": os.environ["PATH"],
            "SHARED": " ".join(sorted({str(ROOT), sys.prefix, sys.base_prefix} - {"/usr"})),
            "EMPTY": " ".join(mounts),
            "WORKING": self.container.get("workingDir", "/var/lib/rebaser"),
            "PREFIX": sys.prefix,
            "SECRETS": str(self._secrets),
            "REPOSITORY": str(ROOT),
            "USER_ID": str(security["runAsUser"]),
            "GROUP_ID": str(security["runAsGroup"]),
        }

    async def passes(self, kind: str) -> bool:
        """Run a probe once, as a kubelet does, and return whether it passes."""
        probe: Mapping[str, Object] = self.container[f"{kind}Probe"]
        with anyio.move_on_after(float(str(probe.get("timeoutSeconds", 1)))):
            try:
                if "exec" in probe:
                    command = self.command(*probe["exec"]["command"])
                    return (await anyio.run_process(command, env=self.outside(), check=False)).returncode == 0
                if "tcpSocket" in probe:
                    await (await anyio.connect_tcp("127.0.0.1", self.port(probe["tcpSocket"]["port"]))).aclose()
                    return True
                wanted = probe["httpGet"]
                return 200 <= (await self.get(wanted["port"], wanted["path"]))[0] < 400
            except OSError:
                return False
        return False

    async def get(self, port: str, path: str) -> tuple[int, str]:
        """Return the status and the body of the answer."""
        async with await anyio.connect_tcp("127.0.0.1", self.port(port)) as stream:
            await stream.send(f"GET {path} HTTP/1.1\r\nhost: kubelet\r\n\r\n".encode())
            answer = b""
            async for chunk in stream:
                answer += chunk
        head, _, body = answer.decode().partition("\r\n\r\n")
        return int(head.split(" ")[1]), body

    async def started(self) -> None:
        """Run the startup probe until it passes. It may fail as often as its threshold says."""
        probe = self.container["startupProbe"]
        for _ in range(probe["failureThreshold"]):
            if await self.passes("startup"):
                return
            if self.process.process.returncode is not None:
                pytest.fail(f"the container ended with {self.process.process.returncode}")
            await anyio.sleep(probe["periodSeconds"])
        pytest.fail("the startup probe never passed, so Kubernetes would have killed the container")

    async def lives(self) -> None:
        """Check that the liveness probe passes. It may fail as often as its threshold says, as on a busy machine."""
        for _ in range(self.container["livenessProbe"]["failureThreshold"]):
            if await self.passes("liveness"):
                return
        pytest.fail("the liveness probe failed so often that Kubernetes would have killed the container")

    async def becomes(self, kind: str, *, passing: bool) -> None:
        """Wait until the probe has passed, or failed, as often in a row as its threshold says."""
        probe = self.container[f"{kind}Probe"]
        needed, row = 1 if passing else probe["failureThreshold"], 0
        while row < needed:
            row = row + 1 if await self.passes(kind) == passing else 0
            await anyio.sleep(0.1)


@asynccontextmanager
async def running(
    rendered: Rendered, folder: Path, name: str = NAME, secrets: Secrets | None = None
) -> AsyncIterator[Pod]:
    """Run the container of a Deployment, with `secrets` as in `Pod`. At the end, stop it as Kubernetes does, and check
    that it ends in time."""
    root = folder / "root"
    root.mkdir()
    pod = Pod(rendered, name, root, secrets)
    command = pod.command(*image_line("ENTRYPOINT"), *pod.container["args"])
    async with (
        await anyio.open_process(command, stdout=None, env=pod.outside()) as process,
        anyio.create_task_group() as group,
    ):
        pod.process = ServerProcess(process, name)
        group.start_soon(pod.process.read_log)
        try:
            yield pod
        finally:
            with anyio.CancelScope(shield=True):
                if process.returncode is None:
                    process.terminate()
                    with anyio.move_on_after(60):
                        await process.wait()
                    if process.returncode is None:
                        process.kill()
                await process.wait()
