"""The deployed files fit the program: NATS accepts its configuration, and all options and settings exist."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from rebaser.dvu.spark import requirements
from rebaser.settings import Settings, load_settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def cluster() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "cluster.yaml").read_text())  # type: ignore[no-any-return]


def nats_server() -> str:
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    assert found is not None
    return found


@pytest.mark.parametrize("token", ['"123abc"', '"1e5"', '"plain"'])
def test_nats_accepts_its_configuration_with_any_token(token: str) -> None:
    checked = subprocess.run(  # noqa: PLW1510 - the exit code is what is looked at
        [nats_server(), "-t", "-c", DEPLOY / "nats.conf"],
        env={**os.environ, "NATS_TOKEN": token},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert checked.returncode == 0, checked.stderr


def test_nats_does_not_start_without_a_token() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "NATS_TOKEN"}
    checked = subprocess.run(  # noqa: PLW1510 - the exit code is what is looked at
        [nats_server(), "-t", "-c", DEPLOY / "nats.conf"], env=environment, capture_output=True, timeout=120
    )
    assert checked.returncode != 0


def test_options_of_the_composed_server_exist(compose: dict[str, Any]) -> None:
    command = compose["services"]["rebaser"]["command"]
    assert command[0] == "serve"
    shown = subprocess.run(
        [sys.executable, "-m", "rebaser", "serve", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    options = [word for word in command if word.startswith("--")]
    assert options
    for option in options:
        assert re.search(rf"(^|\s){option}\s", shown), option


def test_every_variable_is_a_setting(compose: dict[str, Any]) -> None:
    used = set(compose["services"]["rebaser"]["environment"])
    used |= set(re.findall(r"\bREBASER_[A-Z_]+\b", (ROOT / "Dockerfile").read_text()))
    used |= set(re.findall(r"\bREBASER_[A-Z_]+\b", (DEPLOY / "entrypoint").read_text()))
    used |= set(re.findall(r"\bREBASER_[A-Z_]+\b", (DEPLOY / "docs" / "operating.md").read_text())) - {
        "REBASER_DLQ",
        "REBASER_BLOBS",
        "REBASER_REQUESTS",
        "REBASER_TASKS",
        "REBASER_SWEEP",
        "REBASER_COMMITS",
    }
    assert used
    for name in used:
        assert name.removeprefix("REBASER_").lower() in Settings.model_fields, name


def test_the_composed_server_takes_its_settings_and_keeps_what_it_was_told(
    compose: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its nats-server syncs every write, so one copy is `safe`."""
    for name, value in compose["services"]["rebaser"]["environment"].items():
        monkeypatch.setenv(name, value)
    assert load_settings().topology().durability == "safe"


def test_several_servers_share_the_work_and_wait_for_nats_alone(compose: dict[str, Any]) -> None:
    server = compose["services"]["rebaser"]
    assert server["deploy"]["replicas"] >= 2
    assert list(server["depends_on"]) == ["nats"]
    assert float(server["stop_grace_period"].removesuffix("s")) > float(server["environment"]["REBASER_SHUTDOWN_GRACE"])


def test_only_nats_is_published_and_only_to_this_host(compose: dict[str, Any], cluster: dict[str, Any]) -> None:
    services = [*compose["services"].items(), *cluster["services"].items()]
    ports = {name: service.get("ports", []) for name, service in services}
    assert {name for name, published in ports.items() if published} == {"nats"}
    assert all(port.startswith("127.0.0.1:") for port in ports["nats"])


def test_the_cluster_takes_the_place_of_the_one_spark(compose: dict[str, Any], cluster: dict[str, Any]) -> None:
    """The services of the cluster use each other's names, and the entrypoint knows all their commands."""
    services = compose["services"] | cluster["services"]
    assert set(cluster["services"]) & set(compose["services"]) == {"spark"}
    verbs = re.findall(r"^  (spark-\w+)\)$", (DEPLOY / "entrypoint").read_text(), re.MULTILINE)
    for service in cluster["services"].values():
        assert service["command"][0] in verbs
        for word in service["command"]:
            for host in re.findall(r"spark://([\w-]+):7077|spark\.driver\.host=(\w+)", word):
                name = "".join(host)
                assert services[name]["hostname"] == name
    assert "--master" in services["spark"]["command"]
    assert cluster["services"]["spark-worker"]["deploy"]["replicas"] >= 2


def test_what_workers_need_is_what_they_are_asked_for() -> None:
    [line] = re.findall(r"^pip install (cbor2 .+)$", (DEPLOY / "docs" / "operating.md").read_text(), re.MULTILINE)
    assert line.replace("==VERSION", "").split() == sorted(
        requirements.REQUIRED_PACKAGES + requirements.OPTIONAL_PACKAGES + requirements.STORE_PACKAGES
    )


def test_files_that_compose_mounts_exist(compose: dict[str, Any]) -> None:
    for volume in compose["services"]["nats"]["volumes"]:
        source = volume.split(":")[0]
        assert source in compose["volumes"] or (DEPLOY / source).exists()


def stages() -> dict[str, list[str]]:
    """The lines of each stage of the Dockerfile, behind those of the stages that it is made from."""
    found: dict[str, list[str]] = {"${BASE}": []}
    for part in (ROOT / "Dockerfile").read_text().split("\nFROM ")[1:]:
        head, *lines = part.replace("\\\n", " ").splitlines()
        base, _, name = head.split()
        found[name] = [*found[base], *(line for line in lines if line and not line.startswith("#"))]
    return found


@pytest.mark.parametrize("target", ["server", "spark"])
def test_an_image_runs_without_rights_and_can_neither_install_nor_compile(target: str) -> None:
    lines = stages()[target]
    assert lines[-1] == "USER 10001:10001"
    assert [line for line in lines if line.startswith("COPY --from")] == [
        f"COPY --from=build-{target} /opt/rebaser /opt/rebaser"
    ]
    assert any("pip uninstall" in line for line in lines)
    assert not re.search(r"pip install|gcc|build-essential|-dev\b|--group", "\n".join(lines))
    assert ("openjdk" in "\n".join(lines)) == (target == "spark")
    assert any(line.startswith("HEALTHCHECK") for line in lines)


def test_the_images_hold_what_was_tested_and_a_list_of_it() -> None:
    for target, extra in (("server", "spark-client"), ("spark", "spark")):
        [line] = [line for line in stages()[f"build-{target}"] if "/opt/rebaser/bin/python" in line]
        assert f"'.[server,{extra},tracing]'" in line
        assert "-c constraints.txt" in line
        assert "--output-file /opt/rebaser/sbom.cdx.json" in line
    assert list(stages())[-1] == "server"  # without --target


def test_the_images_copy_what_exists() -> None:
    for line in re.findall(r"^COPY (?!--from)(.+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source


def test_composed_services_have_the_image_that_they_need(compose: dict[str, Any], cluster: dict[str, Any]) -> None:
    services = compose["services"] | cluster["services"]
    for service in services.values():
        if "build" in service:
            target = "spark" if service["command"][0].startswith("spark-") else "server"
            assert service["build"]["target"] == target
            assert service["image"] == ("rebaser:local-spark" if target == "spark" else "rebaser:local")


def test_the_entrypoint_names_the_server_after_its_host(tmp_path: Path) -> None:
    fake = tmp_path / "rebaser"
    fake.write_text('#!/bin/sh\necho "$REBASER_SERVER_ID $*"\n')
    fake.chmod(0o755)
    (tmp_path / "hostname").write_text("#!/bin/sh\necho box\n")
    (tmp_path / "hostname").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def run(*arguments: str, **more: str) -> str:
        return subprocess.run(
            [DEPLOY / "entrypoint", *arguments], env=environment | more, capture_output=True, text=True, check=True
        ).stdout

    assert run("serve", "--x") == "box serve --x\n"
    assert run("serve", REBASER_SERVER_ID="own") == "own serve\n"


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\nok\n", 0, ""),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\nprogress: stuck\n", 1, "progress: stuck\n"),
        (b"", 1, "the server closed the connection\n"),
    ],
)
def test_the_health_check_asks_the_server_at_its_address(answer: bytes, code: int, said: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        environment = os.environ | {"REBASER_HTTP": f"0.0.0.0:{listener.getsockname()[1]}"}
        with subprocess.Popen([DEPLOY / "healthcheck"], env=environment, stderr=subprocess.PIPE, text=True) as process:
            client, _ = listener.accept()
            with client:
                asked = b""
                while not asked.endswith(b"\r\n\r\n"):
                    asked += client.recv(1000)
                assert asked.startswith(b"GET /livez HTTP/1.1\r\n")
                client.sendall(answer)
            assert process.stderr is not None
            assert (process.stderr.read(), process.wait(60)) == (said, code)


def test_the_health_check_fails_without_a_server(unused_port: int) -> None:
    environment = os.environ | {"REBASER_HTTP": f"127.0.0.1:{unused_port}"}
    checked = subprocess.run(  # noqa: PLW1510 - the exit code is what is looked at
        [DEPLOY / "healthcheck"], env=environment, capture_output=True, text=True
    )
    assert (checked.returncode, checked.stderr.split(":")[0]) == (1, "no answer at REBASER_HTTP=127.0.0.1")


def test_nats_runs_with_its_configuration_and_syncs_every_write(tmp_path: Path) -> None:
    """The file is used unchanged except for its folder and its addresses, which become loopback with free ports."""
    text = (DEPLOY / "nats.conf").read_text()
    for ours, here in (("/data", f'"{tmp_path / "data"}"'), ('"0.0.0.0:4222"', "127.0.0.1:-1")):
        assert ours in text
        text = text.replace(ours, here)
    (tmp_path / "nats.conf").write_text(text.replace('"0.0.0.0:8222"', "127.0.0.1:-1"))
    with subprocess.Popen(
        [nats_server(), "-c", tmp_path / "nats.conf"],
        env={**os.environ, "NATS_TOKEN": '"1e5"'},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            said = ""
            for line in process.stderr:  # the stream ends with the server if the server does not start
                said += line
                if "Server is ready" in line:
                    break
            monitor = re.search(r"http monitor on (\S+)", said)
            assert monitor is not None, said
            with urllib.request.urlopen(f"http://{monitor[1]}/jsz", timeout=60) as answer:
                jetstream = json.load(answer)["config"]
        finally:
            process.terminate()
    assert "[WRN]" not in said
    assert jetstream["sync_always"] is True
    assert jetstream["max_storage"] == 64 * 1024**3
