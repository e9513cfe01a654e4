"""Alerts on servers and the change sets that they own.

They can wait for working hours: nothing is lost, but the problem does not go away by itself.
"""

from tests.monitoring.alert import (
    ANY_FULL,
    BLOBS_MISSING,
    BUSY,
    CONNECTED,
    DEFECTS,
    LOG_FULL,
    READY,
    UNREADY,
    UNREADY_SERVER,
    Alert,
    event,
)

_BY = "job, instance"
_FAILURES = event("load_failed", "decide_failed", "consume_failed", window="2m", by=_BY)

SERVERS = (
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
        (
            "Repair the network between this server and NATS, or its credentials. A restart does not help.",
            "If the reason is an error of name resolution, check the DNS of the server's machine.",
        ),
        hold=60,
    ),
    Alert(
        "ServerRestarts",
        "ticket",
        """max by (job, instance) (changes(process_start_time_seconds[15m])) > 2
and on (job, instance) present_over_time(rebaser_ready[15m])""",
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
        f"""sum by (job) (
  {_FAILURES}
  - sum by ({_BY}) (increase(rebaser_owners_fenced_total{{where="decide"}}[2m]))
  unless on ({_BY}) {UNREADY_SERVER}
) > 5
and on (job) {CONNECTED}
unless on (job) {LOG_FULL}
unless on (job) {BLOBS_MISSING}
unless on (job) {event("nats_not_allowed", window="2m")} > 0""",
        "owners fail again and again",
        "Servers take a change set and give it back with an error, again and again. Its requests wait.",
        (
            "The log events `load_failed`, `decide_failed` and `consume_failed` contain the change set and the reason.",
            "`rebaser explain WS CS` shows why its requests wait.",
        ),
        (
            "If the blob store does not answer, restore it.",
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
        "Defect",
        "ticket",
        f"{event(*DEFECTS, by='job, event')} > 0",
        "an unexpected error: {event}",
        "A server met an error that its code does not expect: a defect of Rebaser or of a library. It gave up what it "
        "was doing and tried it again: the change set (`owner_failed`), the update (`dvu_broken`, `dvu_job_broken`), "
        "the pull of a branch (`branch_pull_broken`), the request (`request_unreadable`), the reading of a queue or a "
        "log (`nats_handler_failed`, `ordered_failed`, `pull_broken`, `pull_callback_failed`) or the answer of its "
        "HTTP port (`http_failed`).",
        (
            "The event of this name in the logs of the servers contains the traceback and, if known, the change set.",
            "`rebaser status` and `rebaser explain WS CS` show whether that change set makes progress.",
        ),
        (
            "Report it as a bug, with the event.",
            (
                "If the traceback ends in a plug-in of your own, fix it. A request that causes it goes to the dead "
                "letters after `REBASER_MAX_ATTEMPTS` attempts."
            ),
            "If the event recurs although nothing special was sent, restart the server that logs it.",
        ),
    ),
    Alert(
        "CheckpointsFail",
        "ticket",
        f"""{event("checkpoint_failed")} > 2
unless on (job) sum by (job) (increase(rebaser_blob_errors_total[15m])) > 0
unless on (job) {ANY_FULL}
unless on (job) {BLOBS_MISSING}
unless on (job) max_over_time(({UNREADY})[15m:30s])
unless on (job) {event("nats_not_allowed")} > 0""",
        "checkpoints cannot be written",
        "Owners fail to write checkpoints, and try again after later commits. Requests are decided as usual, but logs "
        "grow, and change sets take longer to load.",
        (
            "The log event `checkpoint_failed` contains the change set and the reason.",
            "`rebaser_log_tail_bytes_max` and `rebaser_load_seconds` show how much longer loading takes by now.",
        ),
        (
            "Remove the reason that the event names. The next commit then writes the checkpoint.",
            "If the reason is a time limit, `rebaser_blob_seconds` shows whether the blob store is slow.",
        ),
    ),
    Alert(
        "ServerBusy",
        "ticket",
        f"""{BUSY}
unless on (job, instance) {event("loop_blocked", by="job, instance")} > 0""",
        "{instance} is short of processor time",
        "Timers of its event loop are typically late by more than 200 ms. All its change sets wait, its answers to "
        "probes and pings are late, and its measurements of the network and of NATS are too high.",
        (
            (
                "`rebaser_loop_lag_seconds` and `process_cpu_seconds_total` of all servers show whether only this one "
                "is affected, and whether it uses a whole CPU."
            ),
            "`rebaser top` shows the change sets of this server with the most requests.",
        ),
        (
            "If it uses less than one CPU, give it more: another program, or a limit of its container, takes the rest.",
            "Otherwise, start more servers, or lower `REBASER_CONCURRENCY`.",
        ),
        hold=30,
    ),
    Alert(
        "FilesExhausted",
        "ticket",
        """max by (job, instance) (process_open_fds / process_max_fds) > 0.8
and on (job, instance) rebaser_ready >= 0""",
        "{instance} will soon be unable to open files and connections",
        "The process has over 80 % of the open files that it may have; connections count as files. Beyond the limit, "
        "owners fail with `Too many open files`, and probes and scrapes get no answer.",
        (
            "`process_open_fds` shows whether the number grows slowly or in a burst.",
            "`ls -l /proc/PID/fd` on its machine lists the files and connections.",
        ),
        (
            "Raise the hard limit (`ulimit -Hn`, `LimitNOFILE`, or the container runtime's), and restart the server.",
            "If most open files are connections to the server's HTTP port, find out which program does not close them.",
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
        f"""max by (job) (changes(rebaser_last_sweep_timestamp_seconds[2m])) == 0
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
            "With a `REBASER_SWEEP_INTERVAL` of more than 30 s, raise the two minutes in the rule.",
        ),
        hold=30,
    ),
)
