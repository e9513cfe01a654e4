"""The chart renders valid, safe and complete objects."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from rebaser.settings import Settings
from tests.docs.pages import ROOT
from tests.kubernetes.chart import FOLDER, LEAST, NAME, NAMESPACE, WHY, Object, Rendered, merged, render
from tests.kubernetes.crds import crd
from tests.kubernetes.matrix import (
    BUCKET,
    CONSOLE,
    CONSOLE_URL,
    INGRESS,
    MATRIX,
    MONITORED,
    PLACED,
    PROXY,
    SCALED,
    SECRET,
    SPARK,
    TOKEN,
)

VERSIONS = ("1.30", "1.34", "1.37")
everywhere = pytest.mark.parametrize("layers", MATRIX.values(), ids=MATRIX)


def deployments(rendered: Rendered) -> list[str]:
    return [one["metadata"]["name"] for one in rendered.objects if one["kind"] == "Deployment"]


def labels_of_pods(rendered: Rendered, name: str) -> dict[str, str]:
    return rendered.get("Deployment", name)["spec"]["template"]["metadata"]["labels"]  # type: ignore[no-any-return]


# --- Valid


@everywhere
def test_what_is_rendered_is_valid(layers: tuple[Any, ...]) -> None:
    """The check is strict: a field that an object does not have is an error."""
    validator = pytest.importorskip("kubernetes_validate", reason=WHY)
    import jsonschema

    rendered = render(*layers)
    names = [(one["kind"], one["metadata"]["name"]) for one in rendered.objects]
    assert len(set(names)) == len(names)
    for one in rendered.objects:
        schema = crd(one["apiVersion"], one["kind"])
        if schema is not None:
            jsonschema.validate(one, schema)
            continue
        for version in VERSIONS:
            validator.validate(one, version, strict=True)


@pytest.mark.parametrize(
    ("kind", "where", "wrong"),
    [
        ("Deployment", ("spec", "replicas"), "two"),
        ("Deployment", ("spec", "template", "spec", "containers", 0, "readiness"), {}),
        ("NetworkPolicy", ("spec", "egress", 0, "port"), 53),
        ("ScaledObject", ("spec", "triggers", 0, "metadata", "targetValue"), 0.7),
        ("PodMonitor", ("spec", "podMetricsEndpoints", 0, "pot"), "http"),
        ("PrometheusRule", ("spec", "groups", 0, "rules", 0, "expr"), None),
    ],
)
def test_what_is_wrong_is_not_valid(kind: str, where: tuple[Any, ...], wrong: object) -> None:
    """This shows that the check above can fail."""
    validator = pytest.importorskip("kubernetes_validate", reason=WHY)
    import jsonschema

    one = render(MONITORED, SCALED).get(kind)
    *path, last = where
    inside: Any = one
    for step in path:
        inside = inside[step]
    inside[last] = wrong
    schema = crd(one["apiVersion"], kind)
    refuses = (jsonschema.ValidationError, validator.ValidationError)
    with pytest.raises(refuses):
        _ = validator.validate(one, VERSIONS[-1], strict=True) if schema is None else jsonschema.validate(one, schema)


def test_helm_has_nothing_to_say() -> None:
    helm = pytest.importorskip("helm_python", reason=WHY)
    report = helm.lint(FOLDER, merged(LEAST, MONITORED, SCALED), strict=True, kube_version="v1.30.0")
    assert report["errors"] == []
    assert [one for one in report["messages"] if one["severity"] > 1] == []


def test_the_version_is_that_of_the_package() -> None:
    chart = yaml.safe_load((FOLDER / "Chart.yaml").read_text())
    assert f'version = "{chart["appVersion"]}"' in (ROOT / "pyproject.toml").read_text()


# --- Safe


@everywhere
def test_pods_run_without_rights(layers: tuple[Any, ...]) -> None:
    rendered = render(*layers)
    for name in deployments(rendered):
        pod, container = rendered.pod(name), rendered.container(name)
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == 10001
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["requests"]["memory"] == container["resources"]["limits"]["memory"]
        assert {next(iter(set(one) - {"name"})) for one in pod["volumes"]} <= {"emptyDir", "secret"}
        assert all("sizeLimit" in one["emptyDir"] for one in pod["volumes"] if "emptyDir" in one)
        assert {one["name"] for one in pod["volumes"]} == {one["name"] for one in container["volumeMounts"]}


@everywhere
def test_selectors_find_the_pods_of_one_component_and_no_others(layers: tuple[Any, ...]) -> None:
    rendered = render(*layers)
    pods = {name: labels_of_pods(rendered, name) for name in deployments(rendered)}

    def found(selector: dict[str, str]) -> list[str]:
        return [name for name, labels in pods.items() if selector.items() <= labels.items()]

    assert found(rendered.get("PodDisruptionBudget")["spec"]["selector"]["matchLabels"]) == [NAME]
    for name in pods:
        assert found(rendered.get("Deployment", name)["spec"]["selector"]["matchLabels"]) == [name]
        open_ports = {port["name"] for port in rendered.container(name).get("ports", ())}
        assert rendered.has("Service", name) == bool(open_ports)
        if open_ports:
            service = rendered.get("Service", name)["spec"]
            assert found(service["selector"]) == [name]
            assert {port["targetPort"] for port in service["ports"]} == open_ports
        if rendered.has("NetworkPolicy"):
            assert found(rendered.get("NetworkPolicy", name)["spec"]["podSelector"]["matchLabels"]) == [name]
    for spread in rendered.pod()["topologySpreadConstraints"]:
        assert found(spread["labelSelector"]["matchLabels"]) == [NAME]


def test_two_releases_do_not_find_the_pods_of_each_other() -> None:
    selector = render().get("Service")["spec"]["selector"]
    assert selector["app.kubernetes.io/instance"] == "prod"


@everywhere
def test_no_secret_is_in_what_is_rendered(layers: tuple[Any, ...]) -> None:
    """The chart contains only references to Secrets, whose values come from the cluster."""
    rendered = render(*layers)
    assert not any(one["kind"] == "Secret" for one in rendered.objects)
    for variable in (one for name in deployments(rendered) for one in rendered.container(name)["env"]):
        if re.search("PASSWORD|TOKEN|NKEY|CREDS|KEY$", variable["name"]):
            assert "valueFrom" in variable or variable["value"].startswith("/etc/rebaser/")


# --- Networks


def reachable(rendered: Rendered, name: str = NAME) -> set[int | str]:
    """Return the ports to which the NetworkPolicy lets pods connect, at any address."""
    rules = rendered.get("NetworkPolicy", name)["spec"]["egress"]
    return {port["port"] for rule in rules for port in rule["ports"]}


@everywhere
def test_servers_reach_what_their_settings_name(layers: tuple[Any, ...]) -> None:
    rendered = render(*layers)
    if not rendered.has("NetworkPolicy"):
        return
    environment, ports = rendered.environment(), reachable(rendered)
    assert 53 in ports
    for url in environment.get("REBASER_NATS_URL", "nats://nats:4222").split(","):
        assert int(url.rpartition(":")[2]) in ports
    spark = environment["REBASER_SPARK"]
    if spark == f"sc://{NAME}-spark:15002":
        assert "connect" in ports
    elif spark.startswith("sc://"):
        assert int(spark.rpartition(":")[2]) in ports
    if environment.get("REBASER_BLOBS", "").startswith("s3:"):
        assert 443 in ports


@pytest.mark.parametrize(
    ("spark", "port"), [("sc://a:7000", 7000), ("sc://a", 15002), ("sc://a:7001/;use_ssl=true", 7001)]
)
def test_the_port_of_spark_is_that_of_its_address(spark: str, port: int) -> None:
    assert port in reachable(render({"settings": {"spark": spark}}))


def test_only_servers_reach_spark_and_only_monitoring_reaches_servers() -> None:
    rendered = render(SPARK)
    [rule] = rendered.get("NetworkPolicy", f"{NAME}-spark")["spec"]["ingress"]
    [peer] = rule["from"]
    assert peer["podSelector"]["matchLabels"].items() <= labels_of_pods(rendered, NAME).items()
    assert not peer["podSelector"]["matchLabels"].items() <= labels_of_pods(rendered, f"{NAME}-spark").items()
    assert rule["ports"] == [{"port": "connect"}]
    [rule] = rendered.get("NetworkPolicy")["spec"]["ingress"]
    assert all("namespaceSelector" in peer for peer in rule["from"])
    nobody = render({"networkPolicy": {"monitoring": []}}).get("NetworkPolicy")["spec"]
    assert (nobody["ingress"], nobody["policyTypes"]) == ([], ["Ingress", "Egress"])
    for name in (NAME, f"{NAME}-spark"):
        assert rendered.get("NetworkPolicy", name)["spec"]["policyTypes"] == ["Ingress", "Egress"]


# --- Complete


def test_kubernetes_waits_longer_than_a_server_takes_to_stop() -> None:
    for layer, grace in (({}, 30), ({"settings": {"shutdown_grace": 40.5}}, 56)):
        rendered = render(layer)
        assert rendered.pod()["terminationGracePeriodSeconds"] == grace
        taken = float(rendered.environment().get("REBASER_SHUTDOWN_GRACE", Settings().shutdown_grace))
        assert grace >= taken + 15
        assert "lifecycle" not in rendered.container()


def test_a_server_that_may_wait_for_nats_is_not_killed_meanwhile() -> None:
    """Its port opens at once, so the startup probe has to cover only the start of Python."""
    rendered = render()
    assert float(rendered.environment()["REBASER_WAIT_FOR_NATS"]) > 0
    probe = rendered.container()["startupProbe"]
    assert probe["httpGet"]["path"] == rendered.container()["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 60


def test_an_update_replaces_one_server_at_a_time_and_never_leaves_fewer() -> None:
    spec = render().get("Deployment")["spec"]
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert spec["replicas"] == 2
    assert render().get("PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


def test_keda_decides_the_number_of_servers_alone() -> None:
    rendered = render(SCALED)
    assert "replicas" not in rendered.get("Deployment")["spec"]
    assert not render().has("ScaledObject")
    spec = rendered.get("ScaledObject")["spec"]
    assert spec["scaleTargetRef"] == {"name": NAME}
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (3, 40)
    [trigger] = spec["triggers"]
    [port] = rendered.get("Service")["spec"]["ports"]
    assert trigger["metadata"]["url"] == f"http://{NAME}.{NAMESPACE}.svc:{port['port']}/scale"
    assert trigger["metadata"]["targetValue"] == "700"


def test_alerts_and_dashboard_are_the_files_of_this_repository() -> None:
    rendered = render(MONITORED)
    ours = ROOT / "deploy" / "monitoring"
    assert rendered.get("PrometheusRule")["spec"] == yaml.safe_load((ours / "alerts.yaml").read_text())
    shown = rendered.get("ConfigMap", f"{NAME}-dashboard")
    assert shown["data"]["rebaser.json"] == (ours / "dashboard.json").read_text()
    assert shown["metadata"]["labels"]["grafana_dashboard"] == "1"
    for kind in ("PrometheusRule", "PodMonitor"):
        assert rendered.get(kind)["metadata"]["labels"]["release"] == "prometheus"


def test_a_package_of_the_chart_holds_all_of_it(tmp_path: Path) -> None:
    """Alerts and dashboard are behind a link, which a package must not hold."""
    helm = pytest.importorskip("helm_python", reason=WHY)
    package = helm.package(FOLDER, destination=tmp_path)
    assert Path(package).name == "rebaser-0.1.0.tgz"
    assert render(MONITORED, folder=Path(package)) == render(MONITORED)


def test_prometheus_scrapes_all_servers_under_one_job() -> None:
    """The alerts need one job: without `jobLabel`, the job is the name of the PodMonitor."""
    rendered = render(MONITORED, SPARK)
    spec = rendered.get("PodMonitor")["spec"]
    assert "jobLabel" not in spec
    assert spec["selector"]["matchLabels"].items() <= labels_of_pods(rendered, NAME).items()
    assert not spec["selector"]["matchLabels"].items() <= labels_of_pods(rendered, f"{NAME}-spark").items()
    [endpoint] = spec["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["path"]) == ("http", "/metrics")


def test_images_are_named_by_tag_or_digest() -> None:
    def images(*layers: Any) -> list[str]:
        rendered = render(*layers)
        return [rendered.container(name)["image"] for name in deployments(rendered)]

    assert images() == ["registry.example/rebaser:0.1.0"]
    assert images({"image": {"tag": "7"}}) == ["registry.example/rebaser:7"]
    assert images(PLACED) == ["registry.example/rebaser@sha256:" + "ab" * 32]
    assert images(SPARK, {"image": {"tag": "7"}})[1] == "registry.example/rebaser:7-spark"


def test_workloads_go_where_they_are_told() -> None:
    rendered = render(SPARK, PLACED, {"sparkConnect": {"priorityClassName": "low"}})
    assert rendered.pod()["nodeSelector"] == {"disk": "fast"}
    assert (rendered.pod()["priorityClassName"], rendered.pod(f"{NAME}-spark")["priorityClassName"]) == ("high", "low")
    assert rendered.pod()["tolerations"] == PLACED["tolerations"]
    assert rendered.pod()["affinity"] == PLACED["affinity"]
    assert "nodeSelector" not in rendered.pod(f"{NAME}-spark")


def test_a_large_memory_is_one_the_server_sees() -> None:
    """The server derives its slots from the limit of its container."""
    resources: Object = render({"resources": {"memory": "16Gi"}}).container()["resources"]
    assert resources["limits"] == {"memory": "16Gi"}
    assert "cpu" not in resources["limits"]


def test_keys_of_a_bucket_reach_servers_and_spark() -> None:
    rendered = render(SPARK, BUCKET)
    for name in deployments(rendered):
        assert rendered.container(name)["envFrom"] == [{"secretRef": {"name": "bucket-keys"}}]
        assert 443 in reachable(rendered, name)


def test_the_console_has_credentials_of_its_own_and_can_be_reached_only_through_kubernetes() -> None:
    rendered = render(CONSOLE, SECRET, {"settings": {"nats_url": "nats://nats:4222"}, "secrets": {"nats_url": None}})
    name = f"{NAME}-console"
    container = rendered.container(name)
    assert container["args"] == ["console", "--http", "127.0.0.1:8420"]
    assert "ports" not in container
    assert not rendered.has("Service", name)
    assert rendered.get("NetworkPolicy", name)["spec"]["ingress"] == []
    environment = rendered.environment(name)
    assert environment["REBASER_NATS_URL"] == "nats://nats:4222"
    assert environment["REBASER_NATS_USER"] == "reader"
    assert environment["REBASER_INBOX_PREFIX"] == "_INBOX.clients.reader"
    secret = [one["valueFrom"]["secretKeyRef"]["key"] for one in container["env"] if "valueFrom" in one]
    assert secret == ["reader"]
    assert render(CONSOLE, CONSOLE_URL).container(name)["args"][-1] == "--actions"
    names = [one["name"] for one in render(CONSOLE, CONSOLE_URL).container(name)["env"]]
    assert len(set(names)) == len(names)


def test_a_console_with_a_login_is_reached_through_its_service_by_its_ingress_only() -> None:
    name = f"{NAME}-console"
    rendered = render(CONSOLE, TOKEN)
    container = rendered.container(name)
    assert container["args"] == [
        *("console", "--http", "0.0.0.0:8420", "--auth", "token", "--token-file", "/etc/rebaser/console_token/token"),
        *("--allow-host", "console.example.com", "--hide-values"),
    ]
    assert {"name": "http", "containerPort": 8420} in container["ports"]
    [mount] = [one for one in container["volumeMounts"] if one["mountPath"] == "/etc/rebaser/console_token"]
    volumes = rendered.get("Deployment", name)["spec"]["template"]["spec"]["volumes"]
    [volume] = [one for one in volumes if one["name"] == mount["name"]]
    assert (volume["secret"]["secretName"], volume["secret"]["items"]) == (
        "console", [{"key": "token", "path": "token"}]
    )  # fmt: skip
    assert rendered.get("Service", name)["spec"]["ports"][0]["port"] == 8420
    [rule] = rendered.get("NetworkPolicy", name)["spec"]["ingress"]
    assert (rule["from"], rule["ports"]) == (INGRESS["networkPolicy"]["console"], [{"port": "http"}])
    arguments = render(CONSOLE, CONSOLE_URL, PROXY).container(name)["args"]
    assert arguments[3:] == [
        *("--auth", "proxy", "--trust-proxy", "10.0.3.0/24", "--trust-proxy", "fd00::/8", "--user-header", "X-User"),
        *("--allow-host", "console.example.com", "--allow-host", "rebaser.example.com:8443", "--actions"),
    ]
