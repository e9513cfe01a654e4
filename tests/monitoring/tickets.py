"""Alerts that can wait for working hours: nothing is lost, but the problem does not go away by itself."""

from tests.monitoring.alert import CONNECTED, LOG_FULL, NO_SPARK, READY, Alert, event

_FAILURES = event("load_failed", "decide_failed", "consume_failed", "owner_failed", window="2m")

TICKETS = (
    Alert(
        "ServerSilent",
        "ticket",
        f"""max by (job, instance) (up == 0 and on (job, instance) present_over_time(rebaser_build_info[1h]))
and on (job) {READY}""",
        "{instance} does not answer",
        "A server that Prometheus has scraped before does not answer, while other servers are ready. It has "
        "ended, hangs, or is cut off. Other servers have taken over its change sets.",
        (
            "`rebaser status` shows whether the server still answers through NATS.",
            "The event `loop_blocked` in its log contains the stack of the code that blocks the event loop.",
        ),
        ("Restart the server, and keep its log. If it is gone for good, remove it from the targets of Prometheus.",),
        hold=60,
    ),
    Alert(
        "ServerCutOff",
        "ticket",
        f"max by (job, instance) (rebaser_nats_connected) == 0 and on (job) {CONNECTED}",
        "{instance} has lost NATS",
        "This server has no connection to NATS, while others have one. Other servers have taken over its change sets.",
        ("The events `nats_disconnected` and `nats_reconnect_failed` in its log contain the reason.",),
        ("Repair the network between this server and NATS, or its credentials. A restart does not help.",),
        hold=60,
    ),
    Alert(
        "ServerRestarts",
        "ticket",
        "max by (job, instance) (changes(process_start_time_seconds[15m])) > 2",
        "{instance} restarts again and again",
        "A server started at least three times in 15 minutes. A request or a function may make it crash, or it "
        "may lack memory.",
        (
            (
                "The last lines of its log before each start, and the exit code: 137 means that the kernel or the "
                "container runtime killed it."
            ),
            "The alert WorkEndsServers, which fires if servers suspect a request or an update.",
        ),
        (
            "If memory is short, give the server more memory, or lower `REBASER_CONCURRENCY`.",
            "A request that makes servers crash goes to the dead letters after `REBASER_MAX_DEATHS` attempts.",
        ),
    ),
    Alert(
        "WorkEndsServers",
        "ticket",
        f"{event('request_suspected', 'dvu_suspected', 'branch_pull_suspected')} > 0",
        "a request or an update may have crashed a server",
        "A server died or hung while it had this request or update, so it is now tried in isolation.",
        (
            "The log events `request_suspected`, `dvu_suspected` and `branch_pull_suspected` name the change set.",
            "`rebaser explain WS CS` shows the reason `on_probation` or `dvu_put_off`.",
            "The logs of the servers that died or hung.",
        ),
        (
            (
                "Wait at first: after `REBASER_MAX_DEATHS` attempts, a request becomes a dead letter, and an update "
                "is postponed."
            ),
            "Then fix the cause, which is usually the plug-in of a function, and redrive the dead letter.",
        ),
    ),
    Alert(
        "OwnersFail",
        "ticket",
        f"""{_FAILURES}
- sum by (job) (increase(rebaser_owners_fenced_total{{where="decide"}}[2m])) > 5
and on (job) {CONNECTED}
unless on (job) {LOG_FULL}""",
        "owners fail again and again",
        "Servers take a change set and give it back with an error, again and again. Its requests wait.",
        (
            "The log events `load_failed`, `decide_failed` and `consume_failed` contain the change set and the reason.",
            "`rebaser explain WS CS` shows why its requests wait.",
        ),
        (
            "If a blob is missing, or the blob store does not answer, restore it.",
            "If a log cannot be read, [repair it](operating.md#repairing-a-log).",
            "If the error is `NotAllowed`, the user of the servers lacks a permission, which `rebaser doctor` lists.",
        ),
        hold=60,
    ),
    Alert(
        "OwnersMove",
        "ticket",
        'sum by (job) (rate(rebaser_owners_fenced_total{where!="lease"}[5m])) > 0.1',
        "servers take change sets from each other",
        "Owners are fenced more often than once in ten seconds: two servers think that they own the same change "
        "set. Values stay correct, but work is done twice.",
        (
            (
                "`rebaser_lease_age_seconds` and `rebaser_loop_lag_seconds` show whether servers pause for longer "
                "than `REBASER_ACK_WAIT`."
            ),
            "`rebaser_nats_rtt_seconds` shows whether the network delays acks.",
        ),
        (
            "Give the servers more CPU, or increase `REBASER_ACK_WAIT`, to the same value on all servers.",
            "Make sure that no other program acknowledges tasks, or writes to the logs.",
        ),
    ),
    Alert(
        "LeaseAtRisk",
        "ticket",
        """max by (job, instance) (rebaser_lease_age_seconds / rebaser_ack_wait_seconds) > 0.7
or sum by (job, instance) (increase(rebaser_owners_fenced_total{where="lease"}[15m])) > 0""",
        "{instance} sent its progress acks late, or almost late",
        "The server has not sent progress acks for 70 % of `REBASER_ACK_WAIT`, or lost all its change sets "
        "because it paused for longer. Other servers take these over.",
        (
            "The log events `lease_lost` and `loop_blocked` of this server say for how long it paused.",
            (
                "`rebaser_loop_lag_seconds` and `process_cpu_seconds_total` show whether it gets the CPU time that it "
                "needs."
            ),
        ),
        (
            "Give it more CPU, or fewer change sets (`REBASER_CONCURRENCY`).",
            "If the machine pauses (virtual machines that migrate, laptops), increase `REBASER_ACK_WAIT`.",
        ),
    ),
    Alert(
        "LoopBlocked",
        "ticket",
        f"{event('loop_blocked', by='job, instance')} > 0",
        "code blocked the event loop of {instance}",
        "For longer than `REBASER_LOOP_BLOCKED_AFTER`, this server did nothing else. All its change sets waited.",
        ("The log event `loop_blocked` contains the stack of the code that blocked the event loop.",),
        (
            "Report the stack as a bug, unless it shows a plug-in of your own.",
            "If the stack differs each time, the machine is too busy.",
        ),
    ),
    Alert(
        "FleetFull",
        "ticket",
        """sum by (job) (rebaser_slots_used) / sum by (job) (rebaser_slots) > 0.9
and on (job) max by (job) (rebaser_tasks_waiting) > 0""",
        "the fleet is too small",
        "Over 90 % of all slots are in use, and change sets wait for a slot. They take turns, so all requests are "
        "decided, but later.",
        (
            "`rebaser_slots_used`, `rebaser_slots` and `rebaser_tasks_waiting` show the load over time.",
            "`rebaser status` shows how many change sets wait.",
        ),
        (
            "Start more servers; they take work at once.",
            ("If the servers have memory to spare, increase `REBASER_CONCURRENCY`: see [sizing](running.md#sizing)."),
        ),
        hold=300,
    ),
    Alert(
        "NoSweep",
        "ticket",
        f"""time() - max by (job) (rebaser_last_sweep_timestamp_seconds) > 120
and on (job) {CONNECTED}
and on (job) {READY}""",
        "no server has swept for two minutes",
        "No server is the sweeper, or its sweeps fail. A request whose task was lost would wait for ever; all "
        "others are decided as usual.",
        (
            (
                "`rebaser_sweeper` shows which server is the sweeper. The log events `sweep_failed` and "
                "`pull_refused` contain the reason of a failure."
            ),
            "`rebaser status` shows the stream of sweeps, which must contain one message.",
        ),
        (
            ("If the sweeps of a server fail, restart it: another server then becomes the sweeper."),
            "If the stream or its consumer differs from the settings, run `rebaser init`.",
            "With a `REBASER_SWEEP_INTERVAL` of more than 30 s, raise the 120 s in the rule.",
        ),
        hold=30,
    ),
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
        "max by (job, instance) (rebaser_nats_rtt_seconds) > 0.25",
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
        """histogram_quantile(0.9, sum by (job, le) (rate(rebaser_append_seconds_bucket{kind!="checkpoint"}[2m]))) > 0.5
unless on (job) max by (job) (rebaser_nats_rtt_seconds) > 0.25""",
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
        "DerivedSlow",
        "ticket",
        f"""max by (job) (rebaser_debt_age_seconds_max) > 60
unless on (job) max by (job) (rebaser_debt_age_seconds_max) > 1800
unless on (job) {NO_SPARK}""",
        "an update of derived values has been due for a minute",
        "The derived values of at least one change set are stale, or its update is slow. Requests are applied.",
        (
            "`rebaser status` shows which change set needs an update, and the progress of updates that run.",
            "`rebaser explain WS CS` shows whether the update runs, waits, fails or is postponed, and why.",
        ),
        (
            "If a function is slow or hangs, fix the plug-in.",
            "If updates of your largest change sets take this long, raise the 60 s in the rule.",
        ),
    ),
    Alert(
        "UpdatesFail",
        "ticket",
        f"""sum by (job) (increase(rebaser_dvu_seconds_count{{result="failed"}}[15m])) > 3
unless on (job) {NO_SPARK}""",
        "updates of derived values fail",
        "Updates fail and are tried again, at least every 30 s. Derived values are stale. An error in a value "
        "does not make an update fail, so the cause is another one.",
        (
            "The log events `dvu_failed` and `dvu_broken` contain the reason.",
            "`rebaser explain WS CS` shows the reason `dvu_waiting`.",
        ),
        (
            "If an update took too long (`late`), a function hangs, or Spark is too small; see `REBASER_DVU_TIMEOUT`.",
            "If jobs of Spark fail, the log of the Connect server says why.",
        ),
    ),
    Alert(
        "UpdatePutOff",
        "ticket",
        f"{event('dvu_deferred', 'branch_pull_deferred')} > 0",
        "an update was postponed because it crashed servers",
        "An update of derived values, or a pull of a branch, killed or hung `REBASER_MAX_DEATHS` servers. It is "
        "tried again after 10 s at first, later after up to 10 min. Requests are applied.",
        (
            "The log event `dvu_deferred` or `branch_pull_deferred` names the change set.",
            "`rebaser explain WS CS` shows the reason `dvu_put_off`.",
        ),
        ("Fix the function that needs too much memory or does not end, or remove the value that uses it.",),
    ),
    Alert(
        "SparkDownOnServer",
        "ticket",
        f"""max by (job, instance) (rebaser_spark_up == 0 and on (job, instance) rebaser_ready == 1)
unless on (job) {NO_SPARK}""",
        "{instance} has no Spark",
        "This server cannot compute derived values, while others can. The derived values of its change sets "
        "become stale.",
        (
            "Its log event `spark_down` contains the reason.",
            "`rebaser status` shows the state of Spark on each server.",
        ),
        (
            (
                "Repair its Spark, or its connection to Spark. Until then, other servers can take over its change sets "
                "if it is stopped."
            ),
        ),
        hold=300,
    ),
    Alert(
        "SparkLacks",
        "ticket",
        f"{event('spark_workers_lack', 'dvu_plugin_not_on_workers', 'dvu_store_not_on_workers')} > 0",
        "Spark's workers lack a package, a plug-in or access to the blob store",
        "Without a package or the blob store, updates are slower. Updates that use a missing plug-in wait.",
        (
            (
                "The log events `spark_workers_lack`, `dvu_plugin_not_on_workers` and `dvu_store_not_on_workers` say "
                "what is missing."
            ),
        ),
        ("Install what the event names on the workers: [Spark clusters](operating.md#spark-clusters).",),
    ),
    Alert(
        "DeadLetters",
        "ticket",
        f"""sum by (job) (increase(rebaser_requests_dead_total[15m])) > 0
or {event("requests_without_change_set", "task_unreadable")} > 0""",
        "there are new dead letters",
        "A request could not be processed, and is kept with the reason. Its sender got an error. Other requests "
        "are decided as usual.",
        (
            "`rebaser dlq list` lists the requests with their codes; `rebaser dlq show` shows their contents.",
            "[Error codes](reference/error-codes.md) explains what each code means.",
        ),
        (("Remove the cause, then `rebaser dlq redrive`, or `rebaser dlq drop` if the request is no longer wanted."),),
    ),
    Alert(
        "RequestsHeld",
        "ticket",
        "sum by (job, code) (increase(rebaser_requests_held_total[5m])) > 2",
        "requests cannot be decided yet: {code}",
        "The first request of a change set cannot be decided now, and blocks the later ones: it needs a newer "
        "server, or a blob that is missing. After `REBASER_RETRY_FOR`, it becomes a dead letter.",
        (
            "`rebaser explain WS CS` shows the reason `held` or `newer_server_needed`.",
            "The log event `request_held` contains the change set and the code.",
        ),
        (
            "`unsupported_version`: upgrade the servers, which have to be upgraded before clients.",
            (
                "`blob_missing`, `transient`: restore the blob store, and check that all servers and clients have "
                "the same `REBASER_BLOBS`."
            ),
        ),
    ),
    Alert(
        "PullsFail",
        "ticket",
        f"{event('branch_pull_failed', 'branch_pull_broken')} > 3",
        "branches cannot follow their targets",
        "A server fails to bring a branch up to date with its target, and tries again. The branch keeps its values.",
        (
            "The log events `branch_pull_failed` and `branch_pull_broken` contain the reason.",
            "`rebaser status WS CS` shows whether the branch is behind its target.",
        ),
        ("Remove the cause. `rebaser rebase WS CS` then brings the branch up to date at once, or shows the error.",),
    ),
    Alert(
        "GarbageStays",
        "ticket",
        f"{event('gc_failed', 'gc_candidates_unreadable', window='1h')} > 0",
        "garbage collection fails",
        "Blobs that are no longer needed are not deleted. Nothing else is affected, and the run is repeated.",
        (
            "The log event `gc_failed` contains a code and the reason.",
            "`rebaser gc --dry-run` shows the same error at once.",
        ),
        ("[Garbage collection](operating.md#garbage-collection) explains the reasons.",),
    ),
    Alert(
        "NotAllowed",
        "ticket",
        f"{event('nats_not_allowed')} > 0",
        "NATS denied something to a server",
        "The user of the servers lacks a permission, for instance after an upgrade.",
        (
            "The log event `nats_not_allowed` contains the subject.",
            "`rebaser doctor`, run as this user, lists all permissions that it lacks.",
        ),
        (
            (
                "Grant the permission: [accounts](accounts.md#what-each-user-may-do), or "
                "[permissions](operating.md#permissions)."
            ),
        ),
    ),
)
