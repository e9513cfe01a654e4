"""Defines two scenarios for each alert: a fault with all its effects, and a similar case in which no alert fires."""

from collections.abc import Sequence
from dataclasses import dataclass

from tests.monitoring.fleet import BEGINS, FAULT_AT, STEP, STEPS, A, B, Fault, event, fault, gone, restarting

REST = STEPS - BEGINS


@dataclass(frozen=True)
class Scenario:
    """The scenarios of an alert. `fault` fires only this alert, with `labels` and `job`. `quiet` fires no alert.

    The alert fires at most `after` seconds after the fault has lasted for the `hold` of the alert.
    """

    fault: Sequence[Fault]
    quiet: Sequence[Fault]
    labels: tuple[tuple[str, str], ...] = ()
    after: int = 60


def briefly(name: str, bad: float, good: float, steps: int, **labels: str) -> Fault:
    """Return a fault in which a gauge is `bad` for `steps` scrapes, and then `good`."""
    return fault(name, f"{bad:g}x{steps - 1} {good:g}x{REST}", **labels)


NO_SWEEPS = fault("rebaser_last_sweep_timestamp_seconds", f"{FAULT_AT}x{REST}", instance=A)
B_SWEEPS = fault("rebaser_last_sweep_timestamp_seconds", f"{FAULT_AT}+{STEP}x{REST}", instance=B)
UNREADY = event("server_unready")
SERVER_A = (("instance", A),)
ON_A = {"instance": A}
RARE = fault("rebaser_log_events_total", 0)  # nothing was logged

LATE = [
    fault("rebaser_loop_lag_seconds_bucket", f"1200+0x{REST}", le=bound, instance=A)
    for bound in ("0.005", "0.01", "0.02", "0.05", "0.1", "0.2", "0.5")
]
SLOW_APPENDS = [
    fault("rebaser_append_seconds_bucket", f"1200+0x{REST}", kind="requests", le=bound)
    for bound in ("0.005", "0.01", "0.02", "0.05", "0.1", "0.2", "0.5")
]

SCENARIOS = {
    "NoServer": Scenario([*gone(A), *gone(B)], [fault("rebaser_ready", 0, instance=A)]),
    "NatsLost": Scenario(
        [fault("rebaser_nats_connected", 0), fault("rebaser_ready", 0), NO_SWEEPS, UNREADY, event("load_failed", 9)],
        [briefly("rebaser_nats_connected", 0, 1, 1)],
    ),
    "StreamsUnavailable": Scenario(
        [
            UNREADY,
            fault("rebaser_oldest_request_age_seconds", f"45+15x{REST}"),
            fault("rebaser_log_events_total", f"9+3x{REST}", event="decide_failed"),
        ],
        [UNREADY, event("server_ready_again")],
    ),
    "StreamLost": Scenario(
        [event("stream_lost"), event("change_set_lost"), UNREADY, event("server_ready_again")],
        [UNREADY, event("server_ready_again")],
    ),
    "RequestsStuck": Scenario(
        [fault("rebaser_oldest_request_age_seconds", f"15+15x{REST}")],
        # A request that is decided after 29 s, and a queue that is so long that each request waits for a minute.
        [fault("rebaser_oldest_request_age_seconds", f"14x0 29x0 2x0 9x0 18x0 27x0 36x0 45x0 54x0 60x{REST - 10}")],
        after=45,
    ),
    "AnswersSlow": Scenario(
        [fault("rebaser_request_seconds_bucket", f"1200+0x{REST}", le=bound) for bound in ("0.5", "1.0")],
        [fault("rebaser_request_seconds_bucket", f"1200+0x{REST}", le="0.5")],
    ),
    "DerivedStale": Scenario(
        [fault("rebaser_oldest_debt_age_seconds", 1801, instance=A)],  # no server owns the change set
        [fault("rebaser_debt_age_seconds_max", 60)],
    ),
    "RequestsSkipped": Scenario([event("requests_skipped")], [RARE]),
    "ForeignMessage": Scenario([event("log_foreign_message", 1, instance=B)], [RARE]),
    "StreamFull": Scenario(
        [
            fault("rebaser_stream_full_ratio", 1.0, stream="commits"),
            fault("rebaser_oldest_request_age_seconds", f"45+15x{REST}"),
            fault("rebaser_log_events_total", f"9+3x{REST}", event="decide_failed"),
        ],
        [
            fault("rebaser_stream_full_ratio", 0.8, stream="commits"),
            fault("rebaser_stream_full_ratio", 1, stream="sweep"),
        ],
        (("stream", "commits"),),
    ),
    "SparkDown": Scenario(
        [
            fault("rebaser_spark_up", 0),
            fault("rebaser_debt_age_seconds_max", f"0+15x{REST}"),
            fault("rebaser_dvu_seconds_count", f"1+1x{REST}", result="failed"),
        ],
        [briefly("rebaser_spark_up", 0, 1, 7), fault("rebaser_debt_age_seconds_max", 50)],
    ),
    "BlobsMissing": Scenario(
        [
            fault("rebaser_blobs_missing_total", f"1+1x{REST}"),
            fault("rebaser_log_events_total", f"2+3x{REST}", event="load_failed", instance=A),
        ],
        [fault("rebaser_blobs_missing_total", 1, instance=A)],
    ),
    "CommitUnstorable": Scenario([event("commit_unreadable")], [RARE]),
    "ServerSilent": Scenario([*gone(A), B_SWEEPS], restarting(A), SERVER_A),
    "ServerCutOff": Scenario(
        [
            fault("rebaser_nats_connected", 0, instance=B),
            fault("rebaser_owners_fenced_total", 3, instance=B, where="decide"),
            fault("rebaser_log_events_total", 1, instance=B, event="server_unready"),
        ],
        [briefly("rebaser_nats_connected", 0, 1, 3, instance=B)],
        (("instance", B),),
    ),
    "ServerRestarts": Scenario(
        [fault("process_start_time_seconds", f"{FAULT_AT}x1 {FAULT_AT + 30}x1 {FAULT_AT + 60}x{REST}", instance=A)],
        [fault("process_start_time_seconds", f"{FAULT_AT}x9 {FAULT_AT + 150}x{REST}", instance=A)],
        SERVER_A,
    ),
    "WorkEndsServers": Scenario([event("request_suspected")], [RARE]),
    "OwnersFail": Scenario(
        [fault("rebaser_log_events_total", f"2+3x{REST}", event="load_failed", instance=A)],
        [event("load_failed", 2), event("decide_failed", 4), fault("rebaser_owners_fenced_total", 3, where="decide")],
    ),
    "OwnersMove": Scenario(
        [
            fault("rebaser_owners_fenced_total", f"3+3x{REST}", where="decide"),
            fault("rebaser_log_events_total", f"3+3x{REST}", event="decide_failed"),
        ],
        [fault("rebaser_owners_fenced_total", 10, where="dvu")],
        after=120,
    ),
    "LeaseAtRisk": Scenario(
        [fault("rebaser_owners_fenced_total", 1, where="lease", instance=A)],
        [fault("rebaser_lease_age_seconds", 4)],
        SERVER_A,
    ),
    "Defect": Scenario(
        [
            fault("rebaser_log_events_total", f"1+1x{REST}", event="dvu_broken", instance=A),
            fault("rebaser_dvu_seconds_count", f"1+1x{REST}", result="failed"),
        ],
        [RARE],
        (("event", "dvu_broken"),),
    ),
    "CheckpointsFail": Scenario(
        [fault("rebaser_log_events_total", f"1+1x{REST}", event="checkpoint_failed", instance=A)],
        [event("checkpoint_failed", 1, instance=A)],
    ),
    "LoopBlocked": Scenario([event("loop_blocked", 1, instance=A)], [RARE], SERVER_A),
    "ServerBusy": Scenario(
        [*LATE, *SLOW_APPENDS, fault("rebaser_nats_rtt_seconds", 0.4, instance=A)],
        LATE[:-2],
        SERVER_A,
    ),
    "FilesExhausted": Scenario(
        [fault("process_open_fds", 900, instance=A)], [fault("process_open_fds", 700, instance=A)], SERVER_A
    ),
    "FleetFull": Scenario(
        [fault("rebaser_slots_used", 100)],
        [fault("rebaser_slots_used", 100, instance=A), fault("rebaser_tasks_waiting", 500)],
    ),
    "NoSweep": Scenario(
        [NO_SWEEPS],
        [
            fault("rebaser_last_sweep_timestamp_seconds", 0, instance=A),
            B_SWEEPS,
        ],
        after=150,
    ),
    "StreamFilling": Scenario(
        [fault("rebaser_stream_full_ratio", 0.81, stream="dlq")],
        [briefly("rebaser_stream_full_ratio", 0.9, 0.3, 15, stream="dlq")],
        (("stream", "dlq"),),
    ),
    "SlowNetwork": Scenario(
        [
            fault("rebaser_nats_rtt_seconds", 0.4, instance=A),
            *SLOW_APPENDS,
        ],
        [briefly("rebaser_nats_rtt_seconds", 3, 0.001, 1)],
        SERVER_A,
    ),
    "SlowStorage": Scenario(
        SLOW_APPENDS,
        [
            fault("rebaser_append_seconds_bucket", f"1200+0x{REST}", kind="requests", le=bound)
            for bound in ("0.005", "0.01", "0.02", "0.05", "0.1", "0.2")
        ],
        after=90,
    ),
    "NatsStalls": Scenario(
        [
            fault("rebaser_append_retries_total", 1, why="unanswered", instance=A),
            fault("rebaser_consumer_resets_total", 9, why="silent"),
        ],
        [fault("rebaser_append_seconds_bucket", f"1199+60x{REST}", kind="requests", le="1.0")],
    ),
    "ConsumersDeleted": Scenario(
        [fault("rebaser_log_events_total", f"1x3 2x3 3x3 4x3 5x3 6x3 7x3 8x3 9x{REST}", event="consumers_created")],
        [event("consumers_created"), fault("rebaser_consumer_resets_total", 100, why="silent")],
    ),
    "ClockWrong": Scenario(
        [fault("rebaser_clock_ahead_seconds", -3600, instance=A)],
        [fault("rebaser_clock_ahead_seconds", 9, instance=A)],
        SERVER_A,
    ),
    "BlobStoreFails": Scenario(
        [fault("rebaser_blob_errors_total", f"2+1x{REST}", op="get", instance=A)],
        [fault("rebaser_blob_errors_total", 1, op="put", instance=A)],
    ),
    "CopiesBehind": Scenario(
        [fault("rebaser_stream_copies_behind", 1, stream="commits")],
        [briefly("rebaser_stream_copies_behind", 1, 0, 38, stream="commits")],
        (("stream", "commits"),),
        after=45,
    ),
    "DerivedSlow": Scenario(
        [fault("rebaser_debt_age_seconds_max", f"45+15x{REST}", instance=A)],
        [fault("rebaser_debt_age_seconds_max", 60), fault("rebaser_oldest_debt_age_seconds", 60, instance=A)],
    ),
    "UpdateHangs": Scenario(
        [
            fault("rebaser_dvu_silent_seconds_max", f"12+15x{REST}", instance=A),
            fault("rebaser_debt_age_seconds_max", f"14+15x{REST}", instance=A),
        ],
        [
            # A value is done after 44 s; and on the other server, calls wait for Spark.
            fault("rebaser_dvu_silent_seconds_max", f"14x0 29x0 44x0 2x{REST - 4}", instance=A),
            fault("rebaser_dvu_silent_seconds_max", 60, instance=B),
            fault("rebaser_spark_calls_waiting", 1, instance=B, lane="small"),
        ],
        SERVER_A,
    ),
    "UpdatesFail": Scenario(
        [
            fault("rebaser_dvu_seconds_count", f"2+1x{REST}", result="failed"),
            fault("rebaser_debt_age_seconds_max", f"45+15x{REST}", instance=A),
        ],
        [fault("rebaser_dvu_seconds_count", 1, result="failed")],
    ),
    "UpdatePutOff": Scenario([event("dvu_deferred")], [RARE]),
    "FunctionCrashes": Scenario([event("value_crashed", 1, instance=A)], [RARE]),
    "SparkDownOnServer": Scenario(
        [fault("rebaser_spark_up", 0, instance=A)], [briefly("rebaser_spark_up", 0, 1, 18, instance=A)], SERVER_A
    ),
    "SparkLacks": Scenario([event("dvu_plugin_not_on_workers")], [RARE]),
    "DeadLetters": Scenario(
        [fault("rebaser_requests_dead_total", 1, code="poison", instance=A)],
        [fault("rebaser_requests_held_total", 1, code="blob_missing")],
    ),
    "DeadLettersFail": Scenario(
        [
            fault("rebaser_log_events_total", f"8+3x{REST}", event="dead_letter_failed", instance=A),
            fault("rebaser_oldest_request_age_seconds", f"15+15x{REST}"),
        ],
        [event("dead_letter_failed", 2, instance=A)],
    ),
    "RequestsHeld": Scenario(
        [fault("rebaser_requests_held_total", f"1+1x{REST}", code="unsupported_version", instance=A)],
        [fault("rebaser_requests_held_total", 1, code="blob_missing", instance=A)],
        (("code", "unsupported_version"),),
    ),
    "PullsFail": Scenario([event("branch_pull_failed", 3)], [event("branch_pull_failed", 1)]),
    "GarbageStays": Scenario([event("gc_failed", 1, instance=A)], [RARE]),
    "NotAllowed": Scenario(
        [
            fault("rebaser_log_events_total", f"2+3x{REST}", event="nats_not_allowed", instance=A),
            fault("rebaser_log_events_total", f"2+3x{REST}", event="decide_failed", instance=A),
        ],
        [RARE],
    ),
}
