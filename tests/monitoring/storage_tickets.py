"""Alerts on NATS, its streams, clocks and blobs.

They can wait for working hours: nothing is lost, but the problem does not go away by itself.
"""

from tests.monitoring.alert import BUSY, CONNECTED, LOG_FULL, UNREADY, Alert, event

# The second part looks at the appends that wait at the moments of the scrapes. It weighs appends by their time: slow
# ones are few, so those that ended just before would outweigh them, and one that is never answered is not counted.
_APPENDS = 'rate(rebaser_append_seconds_bucket{kind!="checkpoint"}[1m])'
SLOW_STORAGE = f"""(
  histogram_quantile(0.9, sum by (job, le) ({_APPENDS})) > 0.5
  or max by (job) (quantile_over_time(0.5, rebaser_append_age_seconds_max[1m])) > 0.25
)"""
_SLOW = 'rebaser_append_seconds_{}{{kind!="checkpoint"{}}}[5m]'
STALLED = f"""(
  sum by (job) (increase({_SLOW.format("count", "")}))
  - sum by (job) (increase({_SLOW.format("bucket", ',le="2.0"')})) > 0.5
  or sum by (job) (increase(rebaser_append_retries_total{{why="unanswered"}}[5m])) > 0
)"""

STORAGE = (
    Alert(
        "StreamFilling",
        "ticket",
        """max by (job, stream) (rebaser_stream_full_ratio{stream!="sweep"}) > 0.8
unless max by (job, stream) (rebaser_stream_full_ratio) > 0.95""",
        "the stream of {stream} is filling up",
        "A stream has reached 80 % of its limit. If it is `commits`, servers now keep no history, to make room.",
        (
            "`rebaser status` shows the contents and the limits of all streams.",
            "`rebaser_stream_bytes` shows how fast the stream grows.",
        ),
        (
            (
                "Follow the advice of [StreamFull](#rebaserstreamfull) before it is urgent. "
                "[Growth](running.md#growth-and-retention) says what makes each stream grow."
            ),
        ),
        hold=300,
    ),
    Alert(
        "SlowNetwork",
        "ticket",
        f"""max by (job, instance) (rebaser_nats_rtt_seconds) > 0.25
unless on (job, instance) {BUSY}""",
        "round trips from {instance} to NATS are slow",
        "A round trip to NATS takes more than 250 ms. Each commit needs one, so requests take at least as long.",
        (
            "`rebaser_nats_rtt_seconds` of the other servers shows whether one server is affected, or all.",
            "`rebaser ping`, run on another machine, shows whether NATS answers quickly there.",
        ),
        (
            "Repair the network between this server and NATS, and keep servers and NATS in one region.",
            "If NATS itself is short of CPU, all round trips are slow.",
        ),
        hold=30,
    ),
    Alert(
        "SlowStorage",
        "ticket",
        f"""{SLOW_STORAGE}
unless on (job) max by (job) (max_over_time(rebaser_nats_rtt_seconds[2m])) > 0.25
unless on (job) min by (job) (min_over_time(rebaser_nats_connected[2m])) == 0
unless on (job) max_over_time(({UNREADY})[2m:30s])
unless on (job) {LOG_FULL}
unless on (job) {BUSY.replace("1m", "2m")}""",
        "NATS stores commits slowly",
        "One append in ten takes more than 500 ms, or an append waits whenever Prometheus looks, though round trips "
        "are fast: NATS waits for its disks, or for its other copies.",
        (
            (
                "`nats stream report` shows whether copies are behind, and `iostat` the load of the disks of the NATS "
                "servers."
            ),
            (
                "`rebaser explain WS CS` shows the reason `slow_storage`, and `rebaser_append_age_seconds_max` for how "
                "long appends wait now."
            ),
        ),
        (
            (
                "Give NATS faster disks. With `sync_interval: always`, each append waits for a sync: "
                "[durability](durability.md) says when it may be removed."
            ),
            "Move other writers off these disks.",
        ),
        hold=15,
    ),
    Alert(
        "NatsStalls",
        "ticket",
        f"""{STALLED}
unless on (job) max_over_time(({SLOW_STORAGE})[5m:30s])
unless on (job) max by (job) (max_over_time(rebaser_nats_rtt_seconds[3m])) > 0.25
unless on (job) min by (job) (min_over_time(rebaser_nats_connected[5m])) == 0
unless on (job) max_over_time(({UNREADY})[5m:30s])
unless on (job) {LOG_FULL}
unless on (job) {BUSY.replace("1m", "5m")}
unless on (job) {event("loop_blocked", window="5m")} > 0""",
        "NATS did not answer for seconds",
        "In the last minutes, an append took more than 2 s or was not answered, while others were fast: NATS stopped "
        "for a moment. The requests in these commits waited; nothing is lost.",
        (
            (
                "`rebaser_append_seconds` and `rebaser_append_retries_total` show how long, and on which servers; the "
                "log event `append_unanswered` contains the time."
            ),
            (
                "The logs of the NATS servers at that time: elections of leaders, slow consumers, restarts; `iostat` "
                "and `dmesg` of their machines."
            ),
        ),
        (
            "If disks stop for seconds (snapshots, throttled cloud volumes), give NATS other disks.",
            "If leaders change often, give the NATS servers more CPU, and a better network between them.",
        ),
        hold=30,
    ),
    Alert(
        "ConsumersDeleted",
        "ticket",
        f"""(
  sum by (job) (increase(rebaser_consumer_resets_total{{why="silent"}}[2m])) > 0
  or {event("consumers_created", window="2m")} > 0
)
and on (job) {CONNECTED}
unless on (job) {STALLED}
unless on (job) {UNREADY}
unless on (job) {event("stream_lost")} > 0
unless on (job) {event("nats_not_allowed")} > 0
unless on (job) {BUSY}""",
        "consumers in NATS disappear again and again",
        "Servers create consumers again, because they were deleted or sent no heartbeats. Meanwhile, the requests and "
        "commits that these consumers deliver wait for seconds.",
        (
            (
                "The log events `consumers_created` and `ordered_reset` (`heartbeats were missed`, or `requests were "
                "not delivered`) name the stream and the consumer."
            ),
            (
                "`nats event --js-advisory` shows who deletes consumers: the field `client` of the advisories of the "
                "kind `consumer_action`."
            ),
        ),
        (
            "Stop the program that deletes them, and take the permission away: [accounts](accounts.md).",
            (
                "If nobody deletes them, the account has reached its limit of consumers, or NATS loses its memory: "
                "see the logs of the NATS servers."
            ),
        ),
        hold=150,
    ),
    Alert(
        "ClockWrong",
        "ticket",
        "max by (job, instance) (abs(rebaser_clock_ahead_seconds)) > 10",
        "the clock of {instance} or of NATS is wrong",
        "The clocks of this server and of NATS differ by more than 10 s. The order of requests and the values do "
        "not depend on clocks; times in the history, retries and ages in metrics do. If the clocks differ by more "
        "than 30 min, no garbage is collected.",
        (
            "`rebaser_clock_ahead_seconds` of all servers: if it is the same everywhere, the clock of NATS is wrong.",
            "`timedatectl` or `chronyc tracking`, run on that machine, shows whether its clock is synchronized.",
        ),
        ("Set the clock, and synchronize it by NTP. No restart is needed.",),
    ),
    Alert(
        "BlobStoreFails",
        "ticket",
        "sum by (job) (increase(rebaser_blob_errors_total[5m])) > 3",
        "the blob store fails",
        "Blobs cannot be written or read. Large requests, and change sets whose checkpoints have to be read, "
        "wait. Small requests of change sets that servers have loaded are decided as usual.",
        (
            "`rebaser_blob_errors_total` by `op`, and `rebaser_blob_seconds`, show what fails, and since when.",
            "`rebaser explain WS CS` shows the reason `checkpoint_unreadable` or `held`.",
        ),
        (
            "Restore the store: the bucket of `REBASER_BLOBS`, its credentials, or the stream of blobs in NATS.",
            "Afterwards, waiting requests are decided without further action.",
        ),
    ),
    Alert(
        "CopiesBehind",
        "ticket",
        "max by (job, stream) (rebaser_stream_copies_behind) > 0",
        "a copy of the stream of {stream} is offline or behind",
        "A NATS server that holds a copy of the stream is down, or has not caught up for ten minutes. Everything "
        "works, but if another NATS server is lost, the stream may have no majority, and then it stores nothing.",
        (
            "`rebaser status` shows how many copies of each stream are behind.",
            "`nats stream report` shows which NATS server is offline or behind; its log contains the reason.",
        ),
        (
            "Start the NATS server again, or repair its disk or its network. The copy then catches up by itself.",
            "If the server is gone for good, remove it with `nats server raft peer-remove`; NATS makes another copy.",
        ),
        hold=600,
    ),
)
