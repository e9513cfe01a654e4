"""Alerts on NATS, its streams, clocks and blobs.

They can wait for working hours: nothing is lost, but the problem does not go away by itself.
"""

from tests.monitoring.alert import BUSY, Alert

_APPENDS = 'rate(rebaser_append_seconds_bucket{kind!="checkpoint"}[2m])'

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
        f"""histogram_quantile(0.9, sum by (job, le) ({_APPENDS})) > 0.5
unless on (job) max by (job) (max_over_time(rebaser_nats_rtt_seconds[3m])) > 0.25
unless on (job) {BUSY.replace("1m", "3m")}""",
        "NATS stores commits slowly",
        "One append in ten takes more than 500 ms, though round trips are fast: NATS waits for its disks, or for "
        "its other copies.",
        (
            (
                "`nats stream report` shows whether copies are behind, and `iostat` the load of the disks of the NATS "
                "servers."
            ),
            "`rebaser explain WS CS` shows the reason `slow_storage`.",
        ),
        (
            (
                "Give NATS faster disks. With `sync_interval: always`, each append waits for a sync: "
                "[durability](durability.md) says when it may be removed."
            ),
            "Move other writers off these disks.",
        ),
        hold=30,
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
