"""The rendered pods run: their commands and environments start, and their probes pass and fail when they should."""

import json
import shutil
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import pytest
from anyio import to_thread

from rebaser.embedded.nats import embedded_nats
from rebaser_client import RebaserClient, Set, Success
from tests.kubernetes.chart import NAME, Rendered, Values, render
from tests.kubernetes.matrix import MONITORED, PROXY, SCALED, SPARK, TOKEN
from tests.kubernetes.pod import Pod, image_line, needs_namespaces, running
from tests.support.fleet import NO_SPARK
from tests.support.ports import free_ports

pytestmark = [pytest.mark.anyio, needs_namespaces]


async def rendered(port: int, nats: str) -> Rendered:
    settings = {"nats_url": nats, "spark": NO_SPARK, "ping_interval": 0.5}
    layers = (MONITORED, SCALED, {"port": port, "settings": settings})
    return await to_thread.run_sync(lambda: render(*layers))


async def test_a_pod_serves_and_ends(unused_port: int, tmp_path: Path) -> None:
    async with embedded_nats(tmp_path / "nats") as nats:
        chart = await rendered(unused_port, nats.url)
        async with running(chart, tmp_path) as pod:
            await pod.started()
            await pod.becomes("readiness", passing=True)
            await pod.lives()
            event = await pod.process.wait_for("server_ready")
            assert event["server"] == NAME
            async with RebaserClient.connect(nats.url) as client:
                answer = await client.enqueue_updates_with_reply("shop", "main", [Set("a", 1)])
                assert isinstance(answer.status, Success)
            await check_what_others_ask(pod, chart)
            await check_the_health_check(pod)
            with anyio.fail_after(chart.pod()["terminationGracePeriodSeconds"]):
                assert await pod.process.terminate() == 0
            assert not await pod.passes("readiness")


async def check_what_others_ask(pod: Pod, chart: Rendered) -> None:
    """Check that Prometheus and KEDA get answers at the addresses in their objects."""
    [endpoint] = chart.get("PodMonitor")["spec"]["podMetricsEndpoints"]
    status, text = await pod.get(endpoint["port"], endpoint["path"])
    assert status == 200
    assert "\nrebaser_ready 1.0\n" in text
    [trigger] = chart.get("ScaledObject")["spec"]["triggers"]
    [service] = chart.get("Service")["spec"]["ports"]
    url = urlsplit(trigger["metadata"]["url"])
    assert url.port == service["port"]
    status, text = await pod.get(service["targetPort"], url.path)
    found = json.loads(text)[trigger["metadata"]["valueLocation"]]
    assert (status, found >= 0) == (200, True)
    assert float(trigger["metadata"]["targetValue"]) == 700


async def check_the_health_check(pod: Pod) -> None:
    """Check the health check of the image, which Docker uses and Kubernetes does not."""
    command = pod.command(*image_line(r"HEALTHCHECK .+ CMD"))
    checked = await anyio.run_process(command, env=pod.outside(), check=False)
    assert (checked.returncode, checked.stderr) == (0, b"")


async def test_a_pod_waits_for_nats_and_lives_through_its_loss(unused_port: int, tmp_path: Path) -> None:
    async with embedded_nats(tmp_path / "nats", *free_ports(1)) as nats:
        await nats.kill()
        async with running(await rendered(unused_port, nats.url), tmp_path) as pod:
            await pod.started()
            await pod.becomes("readiness", passing=False)
            await pod.process.wait_for("nats_awaited")
            await pod.lives()
            await nats.start()
            await pod.becomes("readiness", passing=True)
            await nats.kill()
            await pod.becomes("readiness", passing=False)
            await pod.lives()
            await nats.start()
            await pod.becomes("readiness", passing=True)


async def test_a_pod_can_write_only_to_its_empty_folders(unused_port: int, tmp_path: Path) -> None:
    """Also checks its user: only then do the tests above prove anything."""
    chart = await rendered(unused_port, "nats://127.0.0.1:1")
    (tmp_path / "root").mkdir()
    pod = Pod(chart, NAME, tmp_path / "root")
    script = """
        for folder in / /opt/rebaser /opt/image /etc /var/lib/rebaser /usr
        do touch $folder/x 2>/dev/null && echo $folder
        done
        touch /tmp/x && mkdir -p $XDG_CACHE_HOME && id -u && id -g
        grep -E 'Cap(Prm|Eff|Bnd)|NoNewPrivs' /proc/self/status
    """
    done = await anyio.run_process(pod.command("sh", "-c", script), env=pod.outside())
    said = done.stdout.decode().split()
    assert said == [
        "10001", "10001", "CapPrm:", "0" * 16, "CapEff:", "0" * 16, "CapBnd:", "0" * 16, "NoNewPrivs:", "1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("layer", "status"), [({}, b"200"), (TOKEN, b"303"), (PROXY, b"403")], ids=["open", "token", "proxy"]
)
async def test_the_pod_of_the_console_runs(unused_port: int, tmp_path: Path, layer: Values, status: bytes) -> None:
    """With a login, its probes pass without one, and its pages do not open."""
    async with embedded_nats(tmp_path / "nats") as nats:
        values = (layer, {"settings": {"nats_url": nats.url}, "console": {"enabled": True, "port": unused_port}})
        chart = await to_thread.run_sync(lambda: render(*values))
        async with running(chart, tmp_path, f"{NAME}-console", {"console": {"token": "a-token-of-this-test"}}) as pod:
            await pod.started()
            await pod.lives()
            async with await anyio.connect_tcp("127.0.0.1", unused_port) as stream:
                await stream.send(f"GET / HTTP/1.1\r\nhost: localhost:{unused_port}\r\n\r\n".encode())
                assert (await stream.receive()).startswith(b"HTTP/1.1 " + status)
            assert await pod.process.terminate() == 0


@pytest.mark.long
@pytest.mark.skipif(shutil.which("java") is None, reason="no Java")
async def test_the_pod_of_spark_connect_runs(tmp_path: Path) -> None:
    chart = await to_thread.run_sync(lambda: render(SPARK, {"sparkConnect": {"driverMemory": "512m", "conf": {}}}))
    async with running(chart, tmp_path, f"{NAME}-spark") as pod:
        await pod.started()
        await pod.becomes("readiness", passing=True)
        await pod.lives()
