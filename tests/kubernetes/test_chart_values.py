"""Values of the chart: each setting reaches the server, and a value that cannot work is refused with a reason."""

import json
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from rebaser.settings import Settings, load_settings
from rebaser.telemetry.tracing import wanted
from tests.kubernetes.chart import FOLDER, NAME, Rendered, refusal, render
from tests.kubernetes.matrix import (
    SCALED,
    TRACED,
)
from tests.kubernetes.schema import DECIDED, FILES, ONLY_SECRET

SCHEMA: dict[str, Any] = json.loads((FOLDER / "values.schema.json").read_text())


def test_each_value_is_in_the_schema_and_each_object_of_the_schema_is_closed() -> None:
    """The file of defaults shows each value except the settings, which have a page of their own."""
    unlisted = (".settings", ".secret", ".console.settings", ".console.secret")

    def check(schema: dict[str, Any], values: dict[str, Any], path: str) -> None:
        if "properties" not in schema:
            return
        assert schema["additionalProperties"] is False, path
        if not path.startswith(unlisted):
            assert set(schema["properties"]) - {"global"} == set(values), path
        for name, below in schema["properties"].items():
            check(below, values.get(name, {}), f"{path}.{name}")

    check(SCHEMA, yaml.safe_load((FOLDER / "values.yaml").read_text()), "")


KEY = {"name": "a-secret", "key": "a.key"}
SAMPLES: dict[str, Any] = {"boolean": False, "integer": 7_000_000, "number": 77.5, "string": "text"}
SPECIAL: dict[str, object] = {
    "nats_url": "nats://a:1,nats://b:2",
    "blobs": "file:///blobs",
    "spark": "sc://elsewhere:1/;token=x",
    "limits": {"max_updates": 9_000_000, "max_depth": 16},
    "nats_tls_first": True,
}


def sample(name: str) -> object:
    """Return a value that is not the default."""
    schema = SCHEMA["properties"]["settings"]["properties"][name]
    if name in SPECIAL:
        return SPECIAL[name]
    if "enum" in schema:
        return schema["enum"][-1]
    value = SAMPLES[schema["type"]]
    return min(value, schema["maximum"]) if "maximum" in schema else value


@pytest.mark.parametrize("name", sorted(Settings.model_fields))
def test_each_setting_reaches_the_server(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting is passed by its name, as a text that `Settings` reads as the same value."""
    if name in DECIDED:
        rendered = render({"port": 9000})
        read = settings_of(rendered, monkeypatch)
        assert (read.http, read.server_id) == ("0.0.0.0:9000", NAME)
    elif name in FILES:
        rendered = render({"secretFiles": {name: KEY}})
        path = rendered.environment()[f"REBASER_{name.upper()}"]
        [mount] = [one for one in rendered.container()["volumeMounts"] if path.startswith(one["mountPath"] + "/")]
        [volume] = [one for one in rendered.pod()["volumes"] if one["name"] == mount["name"]]
        secret = volume["secret"]
        assert (secret["secretName"], secret["items"]) == ("a-secret", [{"key": "a.key", "path": "a.key"}])
        assert path == f"{mount['mountPath']}/a.key"
    elif name in ONLY_SECRET:
        [variable] = [
            one
            for one in render({"secrets": {name: KEY}}).container()["env"]
            if one["name"] == f"REBASER_{name.upper()}"
        ]
        assert variable["valueFrom"] == {"secretKeyRef": KEY}
    else:
        read = settings_of(render({"settings": {name: sample(name)}}), monkeypatch)
        found = getattr(read, name)
        if name == "limits":
            assert (found.max_updates, found.max_depth) == (9_000_000, 16)
        else:
            assert (str(found) if name == "scratch" else found) == sample(name)
            assert found != Settings.model_fields[name].default


def settings_of(rendered: Rendered, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name, value in rendered.environment().items():
        monkeypatch.setenv(name, value)
    return load_settings()


def test_a_small_fraction_and_a_large_number_are_written_out() -> None:
    given = {"settings": {"ack_wait": 0.5, "history_bytes": 2**50, "concurrency": 100_000, "create_streams": True}}
    environment = render(given).environment()
    assert environment["REBASER_ACK_WAIT"] == "0.5"
    assert environment["REBASER_HISTORY_BYTES"] == str(2**50)
    assert environment["REBASER_CONCURRENCY"] == "100000"
    assert environment["REBASER_CREATE_STREAMS"] == "true"


def test_a_collector_turns_traces_on() -> None:
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}
    assert not wanted(render().environment())
    assert variables.items() <= render(TRACED).environment().items()
    assert wanted(render(TRACED).environment())


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        ({"replicas": 0}, "at '/replicas'"),
        ({"autoscaling": {"enabled": True, "minReplicas": 0}}, "at '/autoscaling/minReplicas'"),
        ({"autoscaling": {"enabled": True, "minReplicas": 4, "maxReplicas": 3}}, "lower than autoscaling.minReplicas"),
        ({"autoscaling": {"enabled": True}}, "autoscaling needs settings.concurrency"),
        ({"autoscaling": {"load": 0.95}}, "at '/autoscaling/load'"),
        ({"settings": {"ack_weight": 3}}, "'ack_weight' not allowed"),
        ({"settings": {"ack_wait": "6s"}}, "at '/settings/ack_wait'"),
        ({"settings": {"ack_wait": 0.1}}, "at '/settings/ack_wait'"),
        ({"settings": {"limits": {"max_deep": 9}}}, "'max_deep' not allowed"),
        ({"settings": {"nats_token": "secret"}}, "'nats_token' not allowed"),
        ({"settings": {"nats_url": "nats://me:secret@nats:4222"}}, "at '/settings/nats_url'"),
        ({"settings": {"spark": "http://spark"}}, "at '/settings/spark'"),
        ({"settings": {"server_id": "me"}}, "'server_id' not allowed"),
        ({"settings": {"spark": None}}, "servers need Spark"),
        ({"settings": {"nats_url": None}}, "set settings.nats_url"),
        ({"sparkConnect": {"enabled": True}}, "exclude each other"),
        ({"secrets": {"spark": {"name": "a", "key": "b"}}}, "settings.spark and secrets.spark"),
        ({"secrets": {"nats_url": {"name": "a", "key": "b"}}}, "settings.nats_url and secrets.nats_url"),
        ({"secrets": {"nats_token": {"name": "a"}}}, "missing property 'key'"),
        ({"secrets": {"nats_token": "secret"}}, "at '/secrets/nats_token'"),
        ({"settings": {"blobs": "s3://bucket"}}, "reach the blob store: add a rule to networkPolicy.egress"),
        (
            {"traces": {"endpoint": "http://collector:4318"}},
            "reach traces.endpoint: add a rule to networkPolicy.egress",
        ),
        ({"traces": {"endpoint": "collector:4318"}}, "at '/traces/endpoint'"),
        ({"console": {"settings": {"ack_wait": 9}}}, "'ack_wait' not allowed"),
        ({"console": {"secrets": {"blobs": KEY}, "settings": {"blobs": "file:///b"}}}, "console.settings.blobs and"),
        (
            {"console": {"enabled": True}, "settings": {"nats_url": None}, "secrets": {"nats_url": KEY}},
            "the console needs an address",
        ),
        ({"console": {"auth": {"type": "password"}}}, "at '/console/auth/type'"),
        ({"console": {"enabled": True, "auth": {"type": "token"}}}, "need each other"),
        ({"console": {"enabled": True, "auth": {"token": KEY}}}, "need each other"),
        ({"console": {"auth": {"type": "token", "token": {"name": "a"}}}}, "at '/console/auth/token'"),
        ({"console": {"enabled": True, "auth": {"type": "proxy"}}}, "console.auth.trustProxy"),
        ({"console": {"enabled": True, "auth": {"trustProxy": ["10.0.0.0/8"]}}}, "console.auth.trustProxy"),
        ({"console": {"auth": {"trustProxy": ["the proxy"]}}}, "at '/console/auth/trustProxy/0'"),
        ({"console": {"enabled": True, "auth": {"type": "token", "token": KEY}}}, "needs console.hosts"),
        ({"console": {"enabled": True, "hosts": ["console.example.com"]}}, "needs console.hosts"),
        (
            {"console": {"enabled": True, "auth": {"type": "token", "token": KEY}, "hosts": ["console.example.com"]}},
            "add its ingress or proxy to networkPolicy.console",
        ),
        ({"console": {"enabled": True, "hideValues": True, "actions": True}}, "console.hideValues excludes"),
        ({"image": {"digest": "abc"}}, "at '/image/digest'"),
        ({"image": {"repository": ""}}, "at '/image/repository'"),
        ({"port": 80}, "at '/port'"),
        ({"replica": 3}, "'replica' not allowed"),
    ],
)
def test_values_that_cannot_work_are_refused(layer: dict[str, Any], reason: str) -> None:
    assert reason in refusal(layer)


def test_a_console_that_is_off_may_have_half_of_its_values() -> None:
    half = {"auth": {"type": "token"}, "hosts": ["console.example.com"], "hideValues": True, "actions": True}
    assert not render({"console": half}).has("Deployment", f"{NAME}-console")
    assert "need each other" in refusal({"console": {"enabled": True, **half}})


def test_nothing_is_deployed_without_a_decision_about_image_nats_and_spark() -> None:
    assert "at '/image/repository'" in refusal(least=False)


@pytest.mark.parametrize(("concurrency", "load", "target"), [(1000, 0.7, "700"), (5, 0.9, "4"), (1, 0.7, "1")])
def test_some_slots_are_left_when_kubernetes_is_content(concurrency: int, load: float, target: str) -> None:
    """Kubernetes ignores deviations of up to a tenth. A single slot cannot be left free."""
    given = {"settings": {"concurrency": concurrency}, "autoscaling": {"load": load}}
    [trigger] = render(SCALED, given).get("ScaledObject")["spec"]["triggers"]
    assert trigger["metadata"]["targetValue"] == target
    assert int(target) * 1.1 < concurrency or concurrency == 1


def test_an_address_of_spark_with_a_token_comes_from_a_secret() -> None:
    rendered = render({"settings": {"spark": None}, "secrets": {"spark": KEY}})
    given = {one["name"]: one for one in rendered.container()["env"]}
    assert given["REBASER_SPARK"]["valueFrom"]["secretKeyRef"] == KEY
    rules = rendered.get("NetworkPolicy")["spec"]["egress"]
    assert {"port": 15002} in [port for rule in rules for port in rule.get("ports", [])]
