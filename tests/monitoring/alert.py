"""An alert, and the pieces of PromQL that several alerts have in common.

All expressions aggregate by `job`: one installation is one scrape job. An alert is about a cause. If a symptom has a
cause that another alert names, the symptom's expression leaves this case out.
"""

from dataclasses import dataclass
from typing import Literal

Severity = Literal["page", "ticket"]


@dataclass(frozen=True)
class Alert:
    """An alert with its runbook.

    `hold`: for how long the expression has to hold (seconds). `summary`: one line, which may name labels as
    `{job}`. `means`: what is so, and who notices. `look`: what to look at, in this order. `act`: what to do.
    """

    name: str
    severity: Severity
    expression: str
    summary: str
    means: str
    look: tuple[str, ...]
    act: tuple[str, ...]
    hold: int = 0


def event(*names: str, by: str = "job", window: str = "15m") -> str:
    """The number of log events with one of these names in the window."""
    match = f'="{names[0]}"' if len(names) == 1 else f'=~"{"|".join(names)}"'
    return f"sum by ({by}) (increase(rebaser_log_events_total{{event{match}}}[{window}]))"


CONNECTED = "max by (job) (rebaser_nats_connected) == 1"
NOT_CONNECTED = "max by (job) (rebaser_nats_connected) == 0"
READY = "max by (job) (rebaser_ready) == 1"
NO_SPARK = "max by (job) (rebaser_spark_up) == 0"
LOG_FULL = 'max by (job) (rebaser_stream_full_ratio{stream=~"commits|blobs"}) > 0.95'


def burn(long: str, short: str, factor: float) -> str:
    """The share of slow requests burns the error budget `factor` times too fast, in a long and in a short window.

    At least ten requests have to be slow, so that one slow request on a quiet day is no alert.
    """

    def slow(window: str) -> str:
        total = f"sum by (job) (increase(rebaser_request_seconds_count[{window}]))"
        return f'({total} - sum by (job) (increase(rebaser_request_seconds_bucket{{le="1.0"}}[{window}])))'

    def share(window: str) -> str:
        return f"{slow(window)} / sum by (job) (increase(rebaser_request_seconds_count[{window}]))"

    limit = f"{factor * 0.001:g}"
    return f"({share(long)} > {limit} and {share(short)} > {limit} and {slow(long)} > 10)"
