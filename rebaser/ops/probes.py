"""Computes the answers of `/livez`, `/readyz` and `/scale` from a snapshot, without I/O.

Liveness means that a restart would not help; readiness means that a rollout may continue. For this reason, a problem
that a restart does not fix never makes the liveness probe fail. Otherwise, the whole fleet would restart at once when
NATS is lost.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from rebaser.snapshot import Snapshot

Probe = Literal["livez", "readyz"]

AWAY_INTERVALS = 2  # a server counts as not ready after this number of ping intervals without NATS
SILENT_WAITS = 5  # ack waits without a round of progress acks, after which a server counts as dead
SILENT_MIN = 30.0  # seconds; a shorter silence never counts as a deadlock
SPARK_READY = "ready"


@dataclass(frozen=True, slots=True)
class Check:
    """The state of one aspect of a server, which `text` describes. `/livez` fails if `live` is false, and `/readyz`
    fails if `ready` is false."""

    name: str
    text: str
    live: bool = True
    ready: bool = True

    def passes(self, probe: Probe) -> bool:
        return self.live if probe == "livez" else self.ready


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a probe: whether the probe passes, and the checks that decide this, except the excluded checks."""

    probe: Probe
    checks: tuple[Check, ...]

    @property
    def passes(self) -> bool:
        return all(check.passes(self.probe) for check in self.checks)

    def text(self) -> str:
        """Return `ok`, or a line for each check that fails."""
        failing = [f"{check.name}: {check.text}" for check in self.checks if not check.passes(self.probe)]
        return "\n".join(failing) or "ok"

    def details(self) -> Mapping[str, object]:
        """Return the answer for programs, with every check."""
        return {
            "ok": self.passes,
            "checks": {check.name: {"ok": check.passes(self.probe), "text": check.text} for check in self.checks},
        }


def judge(probe: Probe, snapshot: Snapshot, *, require: Collection[str] = (), exclude: Collection[str] = ()) -> Answer:
    """Return the answer to `probe` for `snapshot`. `require` contains `spark` if a server without Spark counts as not
    ready. `exclude` contains the names of the checks to leave out (see `CHECKS`)."""
    checks = (
        _stage(snapshot),
        _nats(snapshot),
        _progress(snapshot),
        Check("streams", snapshot.missing or "all exist", ready=not snapshot.missing),
        Check("spark", snapshot.spark, ready="spark" not in require or snapshot.spark == SPARK_READY),
        # The trouble of a change set never fails a probe, because other change sets still make progress.
        Check("trouble", snapshot.trouble or "none"),
    )
    return Answer(probe, tuple(check for check in checks if check.name not in exclude))


def workload(snapshot: Snapshot) -> Mapping[str, int]:
    """Return the work of the whole installation, for an autoscaler: the number of change sets that wait for a server
    or that a server owns. All servers return this number, as of their last check."""
    return {"changeSets": snapshot.tasks_waiting + snapshot.tasks_in_hand}


CHECKS = ("stage", "nats", "progress", "streams", "spark", "trouble")  # the checks that a request can exclude
REQUIRABLE = ("spark",)


def _stage(snapshot: Snapshot) -> Check:
    return Check("stage", snapshot.stage, ready=snapshot.stage == "serving")


def _nats(snapshot: Snapshot) -> Check:
    why = snapshot.nats_problem and f": {snapshot.nats_problem}"
    if snapshot.stage == "connecting":
        return Check("nats", f"there has been no connection yet{why}", ready=False)
    if not snapshot.nats_away:
        return Check("nats", "connected")
    ready = snapshot.nats_away <= AWAY_INTERVALS * snapshot.ping_interval
    return Check("nats", f"no connection for {snapshot.nats_away:.1f} s{why}", ready=ready)


def _progress(snapshot: Snapshot) -> Check:
    """Check that the loop that sends progress acks for tasks is running. The loop ends when the server drains."""
    silent = snapshot.progress_silent
    if snapshot.stage != "serving" or silent <= max(SILENT_WAITS * snapshot.ack_wait, SILENT_MIN):
        return Check(
            "progress", "progress acks are sent" if snapshot.stage == "serving" else "not serving, so no acks are due"
        )
    text = f"no progress ack was attempted for {silent:.0f} s, so other servers take over the change sets"
    return Check("progress", text, live=False, ready=False)
