"""Renders the chart with Helm's own library, and finds objects in the result."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.docs.pages import ROOT

FOLDER = ROOT / "deploy" / "helm" / "rebaser"
WHY = "not in the group `deploy`, which .ci/run installs: uv pip install -c deploy/constraints.txt --group deploy"
RELEASE, NAMESPACE, NAME = "prod", "shop", "prod-rebaser"

Object = dict[str, Any]
Values = Mapping[str, Any]

LEAST: Values = {
    "image": {"repository": "registry.example/rebaser"},
    "settings": {"nats_url": "nats://nats:4222", "spark": "sc://spark:15002"},
}


def merged(*layers: Values) -> dict[str, Any]:
    """Return the values of all layers, in which a later layer overrides earlier ones, and None removes a value."""
    found: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            if value is None:
                found.pop(name, None)
            else:
                found[name] = merged(found.get(name, {}), value) if isinstance(value, Mapping) else value
    return found


@dataclass(frozen=True)
class Rendered:
    """The objects that the chart renders for some values."""

    objects: tuple[Object, ...]

    def get(self, kind: str, name: str = NAME) -> Object:
        [found] = [one for one in self.objects if (one["kind"], one["metadata"]["name"]) == (kind, name)]
        return found

    def has(self, kind: str, name: str = NAME) -> bool:
        return any((one["kind"], one["metadata"]["name"]) == (kind, name) for one in self.objects)

    def pod(self, name: str = NAME) -> Object:
        return self.get("Deployment", name)["spec"]["template"]["spec"]  # type: ignore[no-any-return]

    def container(self, name: str = NAME) -> Object:
        [container] = self.pod(name)["containers"]
        return container  # type: ignore[no-any-return]

    def environment(self, name: str = NAME) -> dict[str, str]:
        """Return the variables whose values are not in a Secret. The name of the pod is that of its Deployment."""
        found = {}
        for one in self.container(name)["env"]:
            if "value" in one:
                found[one["name"]] = one["value"]
            elif "fieldRef" in one["valueFrom"]:
                assert one["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"
                found[one["name"]] = name
        return found


def render(*layers: Values, least: bool = True, folder: Path = FOLDER) -> Rendered:
    """Render the chart or package at `folder`. With `least`, the layers override the minimal values `LEAST`."""
    helm = pytest.importorskip("helm_python", reason=WHY)
    values = merged(LEAST, *layers) if least else merged(*layers)
    with helm.Chart.load(folder) as chart:
        files: dict[str, str] = chart.render(values, name=RELEASE, namespace=NAMESPACE)
    return Rendered(tuple(documents(text for name, text in files.items() if not name.endswith(".txt"))))


def documents(texts: Iterable[str]) -> Iterable[Object]:
    for text in texts:
        yield from (one for one in yaml.safe_load_all(text) if one is not None)


def refusal(*layers: Values, least: bool = True) -> str:
    """Return the reason why Helm refuses the values."""
    helm = pytest.importorskip("helm_python", reason=WHY)
    with pytest.raises(helm.HelmError) as refused:
        render(*layers, least=least)
    return str(refused.value)
