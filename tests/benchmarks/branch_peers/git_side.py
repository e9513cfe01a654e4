"""git with a file for each value, in folders of at most a hundred files; a bare repository, and only plumbing
commands."""

import json
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.benchmarks.branch_peers.workload import Edits, text_of, texts

WHO = "bench <bench@localhost> 1700000000 +0000"


class Git:
    def __init__(self, folder: Path) -> None:
        self._folder = folder / "repository.git"
        names = ("AUTHOR", "COMMITTER")
        who = {f"GIT_{one}_NAME": "bench" for one in names} | {f"GIT_{one}_EMAIL": "bench@localhost" for one in names}
        self._environment = os.environ | who | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
        subprocess.run(["git", "init", "-q", "--bare", "-b", "main", str(self._folder)], check=True)
        self.version = self._git("version").decode().split()[2]
        self._conflicts: list[bytes] = []

    async def load(self, count: int) -> None:
        self._import("main", [(number, text) for number, text in texts(count)], "")

    async def branch(self, name: str) -> None:
        self._git("update-ref", f"refs/heads/{name}", "main")

    async def edit(self, name: str, edits: Edits) -> None:
        self._import(name, [(number, text_of(value)) for number, value in edits.items()], name)

    async def diff(self, name: str) -> int:
        base = self._git("merge-base", "main", name).strip().decode()
        found = self._git("diff-tree", "-r", base, name).splitlines()
        blobs = b"\n".join(blob for line in found for blob in line.split()[2:4])
        assert self._git("cat-file", "--batch", given=blobs).count(b" blob ") == 2 * len(found)
        return len(found)

    async def merge(self, name: str) -> int:
        done = self._run("merge-tree", "--write-tree", "-z", "main", name)
        tree, *rest = done.stdout.split(b"\0")
        if done.returncode:
            self._conflicts = rest[: rest.index(b"")]
            return len(self._conflicts) // 3  # each conflict has three stages
        merged = self._git("commit-tree", tree.decode(), "-p", "main", "-p", name, "-m", "merge").strip().decode()
        self._git("update-ref", "refs/heads/main", merged)
        return 0

    async def conflicts(self, name: str) -> int:
        del name
        blobs = b"\n".join(line.split()[1] for line in self._conflicts)
        return self._git("cat-file", "--batch", given=blobs).count(b" blob ") // 3

    async def revert(self) -> None:
        """Revert the last merge by a three-way merge in the index."""
        index = {"GIT_INDEX_FILE": str(self._folder / "revert")}
        self._git("read-tree", "main", more=index)
        self._git("read-tree", "-i", "-m", "--aggressive", "main", "main", "main^", more=index)
        tree = self._git("write-tree", more=index).strip().decode()
        undone = self._git("commit-tree", tree, "-p", "main", "-m", "revert").strip().decode()
        self._git("update-ref", "refs/heads/main", undone)

    async def position(self) -> Any:
        return self._git("rev-parse", "main").strip().decode()

    async def read(self, number: int, at: Any) -> int:
        return _value(self._git("cat-file", "blob", f"{at}:{_path(number)}"))

    async def blame(self, number: int) -> object:
        return self._git("log", "-1", "--format=%H %an", "main", "--", _path(number))

    async def log(self, number: int) -> int:
        return len(self._git("log", "--format=%H %an %ad", "main", "--", _path(number)).splitlines())

    async def collect(self) -> None:
        self._git("gc", "-q", "--prune=now")

    async def size(self) -> int:
        return sum(file.stat().st_size for file in self._folder.rglob("*") if file.is_file())

    def _import(self, name: str, files: Iterable[tuple[int, str]], base: str) -> None:
        head = [f"commit refs/heads/{name}", f"committer {WHO}", "data 0"] + [f"from refs/heads/{base}^0"] * bool(base)
        lines = [f"M 100644 inline {_path(number)}\ndata {len(text)}\n{text}" for number, text in files]
        self._git("fast-import", "--quiet", given="\n".join([*head, *lines, ""]).encode())

    def _git(self, *arguments: str, given: bytes = b"", more: dict[str, str] | None = None) -> bytes:
        done = self._run(*arguments, given=given, more=more)
        done.check_returncode()
        return done.stdout

    def _run(
        self, *arguments: str, given: bytes = b"", more: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        environment = self._environment | (more or {})
        command = ["git", "--git-dir", str(self._folder), *arguments]
        return subprocess.run(command, check=False, input=given, stdout=subprocess.PIPE, env=environment)


def _path(number: int) -> str:
    return f"v/{number // 10_000}/{number // 100 % 100}/{number}"


def _value(text: bytes) -> int:
    return int(json.loads(text)["value"])
