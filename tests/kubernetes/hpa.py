"""What Kubernetes makes of the number that KEDA hands it: the arithmetic of the HorizontalPodAutoscaler.

As in the documentation of Kubernetes: a tolerance of a tenth; of the recommendations in the stabilization window the
highest one counts for fewer pods; a policy bounds the change in a period.
"""

from collections.abc import Iterable, Iterator
from math import ceil, floor
from typing import Any

SYNC = 15  # seconds between two decisions
TOLERANCE = 0.1


def recommended(pods: int, work: float, target: float) -> int:
    """The number of pods at which each has at most `target` of the work, or `pods` if that is about so."""
    return pods if abs(work / (target * pods) - 1) <= TOLERANCE else ceil(work / target)


def pods_over_time(spec: dict[str, Any], work: Iterable[float], pods: int) -> Iterator[int]:
    """The number of pods after each decision, for the spec of a ScaledObject; `work` as each decision sees it."""
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
    """The number of pods that the policy allows, going by that at the beginning of its period."""
    start: int = before[max(len(before) - policy["periodSeconds"] // SYNC, 0)]
    change: float = policy["value"] if policy["type"] == "Pods" else start * policy["value"] / 100
    return ceil(start + change) if up else floor(start - change)
