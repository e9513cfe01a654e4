"""Schemas of the custom resources that the chart renders. They are closed, and have only the fields that the chart
uses."""

from typing import Any

from tests.kubernetes.schema import COUNT, NAME, TEXTS, closed, listed

SECONDS = {"type": "string", "pattern": "^[0-9]+s$"}
METADATA = closed(name=NAME, labels=TEXTS) | {"required": ["name", "labels"]}
POLICY = closed(type={"enum": ["Percent", "Pods"]}, value=COUNT, periodSeconds={**COUNT, "maximum": 1800})
RULES = closed(
    stabilizationWindowSeconds={"type": "integer", "minimum": 0, "maximum": 3600},
    selectPolicy={"enum": ["Max", "Min", "Disabled"]},
    policies=listed(POLICY),
)
SCALED_OBJECT = closed(
    scaleTargetRef=closed(name=NAME),
    pollingInterval=COUNT,
    minReplicaCount=COUNT,
    maxReplicaCount=COUNT,
    advanced=closed(horizontalPodAutoscalerConfig=closed(behavior=closed(scaleUp=RULES, scaleDown=RULES))),
    triggers=listed(
        closed(
            type={"enum": ["metrics-api", "cpu"]},
            metricType={"enum": ["AverageValue", "Utilization"]},
            metadata=TEXTS,
        )
        | {"required": ["type", "metadata"]}
    ),
) | {"required": ["scaleTargetRef", "triggers"]}
POD_MONITOR = closed(
    selector=closed(matchLabels=TEXTS),
    podMetricsEndpoints={**listed(closed(port=NAME, path=NAME, interval=SECONDS)), "minItems": 1},
) | {"required": ["selector", "podMetricsEndpoints"]}
RULE = closed(alert=NAME, expr=NAME, **{"for": SECONDS}, labels=TEXTS, annotations=TEXTS)
PROMETHEUS_RULE = closed(groups=listed(closed(name=NAME, rules=listed(RULE | {"required": ["alert", "expr"]}))))

CRDS: dict[tuple[str, str], dict[str, Any]] = {
    ("keda.sh/v1alpha1", "ScaledObject"): SCALED_OBJECT,
    ("monitoring.coreos.com/v1", "PodMonitor"): POD_MONITOR,
    ("monitoring.coreos.com/v1", "PrometheusRule"): PROMETHEUS_RULE,
}


def crd(version: str, kind: str) -> dict[str, Any] | None:
    """Return the schema of a custom resource; None for a resource that is part of Kubernetes."""
    spec = CRDS.get((version, kind))
    if spec is None:
        return None
    made = closed(apiVersion={"const": version}, kind={"const": kind}, metadata=METADATA, spec=spec)
    return made | {"required": ["apiVersion", "kind", "metadata", "spec"]}
