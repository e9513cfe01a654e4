"""A Spark worker reads by itself what a server has put into a folder or a bucket."""

import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from rebaser.dvu.worker.blob_fetch import open_store
from rebaser_client.blobs.object_store import ObjectStoreBlobs
from rebaser_core.blobs.address import address_of, path_of
from rebaser_core.errors import DvuError, UnprocessableError

pytestmark = pytest.mark.anyio


class Bucket(BaseHTTPRequestHandler):
    """The part of S3 that one bucket without rules needs."""

    kept: dict[str, bytes]

    def do_PUT(self) -> None:
        self.kept[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(200)

    def do_GET(self) -> None:
        data = self.kept.get(self.path)
        self.answer(404 if data is None else 200, data or b"")

    def answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name it has there
        pass


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
    """The contents of s3://bucket."""
    kept: dict[str, bytes] = {}
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Bucket,), {"kept": kept})) as server:
        thread = Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        monkeypatch.setenv("AWS_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SECRET")
        open_store.cache_clear()
        yield kept
        server.shutdown()
        thread.join()
    open_store.cache_clear()


@pytest.mark.parametrize("url", ["file://{folder}/a/b", "s3://bucket/prefix"])
async def test_a_worker_reads_what_the_server_put(bucket: dict[str, bytes], url: str, tmp_path: Path) -> None:
    url = url.format(folder=tmp_path)
    blobs = ObjectStoreBlobs(url)
    get = open_store(url)
    for data in (b"", b"structure" * 100_000):
        assert get(await blobs.put(data)) == data
    with pytest.raises(DvuError) as missing:
        get(address_of(b"never put"))
    assert missing.value.code == "blob_missing"
    with pytest.raises(UnprocessableError):
        get("../../etc/passwd")


async def test_damage_is_noticed(tmp_path: Path) -> None:
    url = f"file://{tmp_path}"
    address = await ObjectStoreBlobs(url).put(b"good")
    (tmp_path / path_of(address)).write_bytes(b"bad")
    with pytest.raises(DvuError) as damaged:
        open_store(url)(address)
    assert damaged.value.code == "blob_corrupt"


def test_a_store_out_of_reach_is_told_without_its_secrets(
    bucket: dict[str, bytes], unused_port: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("rebaser.dvu.worker.blob_fetch._RETRY", {"max_retries": 0})
    monkeypatch.setenv("AWS_ENDPOINT", f"http://127.0.0.1:{unused_port}")
    for url in ("s3://bucket/prefix", f"file://{tmp_path}/nothing/here"):
        with pytest.raises(DvuError) as away:
            open_store(url)(address_of(b"x"))
        assert away.value.code == "blob_store"
        assert "SECRET" not in away.value.message


def test_a_worker_needs_nothing_of_the_client_for_it(tmp_path: Path) -> None:
    """The worker has neither the packages of Rebaser's client nor an event loop."""
    data = b"x" * 70_000
    address = address_of(data)
    (tmp_path / path_of(address)).parent.mkdir(parents=True)
    (tmp_path / path_of(address)).write_bytes(data)
    program = (
        "import sys\nfrom rebaser.dvu.worker.blob_fetch import open_store\n"
        "print(len(open_store(sys.argv[1])(sys.argv[2])))\n"
        "print([name for name in ('anyio', 'nats', 'pydantic', 'structlog', 'rebaser_client') if name in sys.modules])"
    )
    command = [sys.executable, "-c", program, f"file://{tmp_path}", address]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.stdout == "70000\n[]\n"
