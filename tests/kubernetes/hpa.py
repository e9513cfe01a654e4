"""The arithmetic by which a HorizontalPodAutoscaler of Kubernetes uses the number that KEDA reports.

It follows the documentation of Kubernetes: there is a tolerance of a tenth; before pods are removed, the highest
recommendation within the stabilization window counts; a policy bounds the change within a period.
"""

from collections.abc import Iterable, Iterator
from math import ceil, floor
from typing import Any

SYNC = 15  # seconds between two decisions
TOLERANCE = 0.1


def recommended(pods: int, work: float, target: float) -> int:
    """Return the number of pods at which each has at most `target` of the work, or `pods` if the present load is within
    the tolerance."""
    return pods if abs(work / (target * pods) - 1) <= TOLERANCE else ceil(work / target)


def pods_over_time(spec: dict[str, Any], work: Iterable[float], pods: int) -> Iterator[int]:
    """Yield the number of pods after each decision. `spec` is that of a ScaledObject, and `work` the work at each
    decision."""
    behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    target = float(spec["triggers"][0]["metadata"]["targetValue"])
    lowest, highest = spec["minReplicaCount"], spec["maxReplicaCount"]
    window = behavior["scaleDown"]["stabilizationWindowSeconds"] // SYNC
    assert behavior["scaleUp"]["stabilizationWindowSeconds"] == 0
    before, wanted = [pods], [pods]
    for one in work:
        wanted.append(min(max(recommended(pods, one, target), lowest), highest))
        down = max(wanted[-window - 1 :])
        if wanted[-1] > pods:
            bounds = [allowed(policy, before, up=True) for policy in behavior["scaleUp"]["policies"]]
            pods = min(wanted[-1], max(bounds))
        elif down < pods:
            bounds = [allowed(policy, before, up=False) for policy in behavior["scaleDown"]["policies"]]
            pods = max(down, min(bounds))
        before.append(pods)
        yield pods


def allowed(policy: dict[str, Any], before: list[int], *, up: bool) -> int:
    """Return the number of pods that the policy allows, given the numbers `before` within its period."""
    start: int = before[max(len(before) - policy["periodSeconds"] // SYNC, 0)]
    change: float = policy["value"] if policy["type"] == "Pods" else start * policy["value"] / 100
    return ceil(start + change) if up else floor(start - change)
