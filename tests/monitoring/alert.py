"""Defines what an alert is, and the parts of PromQL that several alerts share.

All expressions aggregate by `job`, because each installation is one scrape job. A fault fires one alert: the alert for
a symptom does not fire if another alert names the cause.
"""

from dataclasses import dataclass
from typing import Literal

Severity = Literal["page", "ticket"]


@dataclass(frozen=True)
class Alert:
    """An alert with its runbook.

    `summary` is one line, which may contain labels in braces, such as `{job}`. `means` describes the problem and its
    effects. `look` lists what to look at, in this order. `act` lists what to do. The alert fires when the expression
    has been true for `hold` seconds.
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
    """Return a query for the number of log events with one of `names` in the window."""
    match = f'="{names[0]}"' if len(names) == 1 else f'=~"{"|".join(names)}"'
    return f"sum by ({by}) (increase(rebaser_log_events_total{{event{match}}}[{window}]))"


CONNECTED = "max by (job) (rebaser_nats_connected) == 1"
NOT_CONNECTED = "max by (job) (rebaser_nats_connected) == 0"
READY = "max by (job) (rebaser_ready) == 1"
NO_SPARK = "max by (job) (rebaser_spark_up) == 0"
LOG_FULL = 'max by (job) (rebaser_stream_full_ratio{stream=~"commits|blobs"}) > 0.95'
_UNREADY = """
  sum by (job, instance) (rebaser_log_events_total{event="server_unready"})
  - sum by (job, instance) (rebaser_log_events_total{event="server_ready_again"})
  and on (job, instance) rebaser_nats_connected == 1
"""
UNREADY = f"max by (job) ({_UNREADY}) > 0"
UNREADY_SERVER = f"max by (job, instance) ({_UNREADY}) > 0"
# All connected servers are unready, as far as they answer scrapes.
NONE_READY = f"min by (job) ({_UNREADY}) > 0"
# The servers that pull tasks are all unready. If only one of them is, the requests of the others may still be stuck.
ALL_UNREADY = f"min by (job) ({_UNREADY}  and on (job, instance) rebaser_ready == 1\n) > 0"

ANY_FULL = 'max by (job) (rebaser_stream_full_ratio{stream=~"commits|blobs|tasks|dlq"}) > 0.95'
BLOBS_MISSING = f"""({event("checkpoint_incomplete")} > 0
or sum by (job) (increase(rebaser_blobs_missing_total[5m])) > 2)"""
BUSY = "histogram_quantile(0.5, sum by (job, instance, le) (rate(rebaser_loop_lag_seconds_bucket[1m]))) > 0.2"


DEAD_LETTERS_FAIL = f"{event('dead_letter_failed', window='2m')} > 3"
# Events that mean a defect of Rebaser, or of a library that it uses.
DEFECTS = (
    "branch_pull_broken", "dvu_broken", "dvu_job_broken", "http_failed", "nats_handler_failed", "ordered_failed",
    "owner_failed", "pull_broken", "pull_callback_failed", "request_unreadable",
)  # fmt: skip


def burn(long: str, short: str, factor: float) -> str:
    """Return a condition for requests that are slow `factor` times as often as allowed, in a long and a short window.

    At least ten requests have to be slow, so that one slow request on a quiet day fires no alert. When the difference
    of the clocks of NATS and a server jumps, requests seem to be slow until the server compares the clocks, so the
    condition is false while the short window contains a jump.
    """

    def slow(window: str) -> str:
        total = f"sum by (job) (increase(rebaser_request_seconds_count[{window}]))"
        return f'({total} - sum by (job) (increase(rebaser_request_seconds_bucket{{le="1.0"}}[{window}])))'

    def share(window: str) -> str:
        return f"{slow(window)} / sum by (job) (increase(rebaser_request_seconds_count[{window}]))"

    limit, ahead = f"{factor * 0.001:g}", f"rebaser_clock_ahead_seconds[{int(short[:-1]) + 1}m]"
    jumped = f"max by (job) (max_over_time({ahead}) - min_over_time({ahead})) > 10"
    return f"({share(long)} > {limit} and {share(short)} > {limit} and {slow(long)} > 10\n  unless on (job) {jumped})"


def owed(seconds: int) -> str:
    """Return a condition for an update that has been due for this long, on a server, or, if no server owns its change
    set, as the sweeper knows."""
    metrics = ("rebaser_debt_age_seconds_max", "rebaser_oldest_debt_age_seconds")
    return f"({' or '.join(f'max by (job) ({metric}) > {seconds}' for metric in metrics)})"
