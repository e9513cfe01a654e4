"""Alerts that page somebody, because users are affected or data is in danger."""

from tests.monitoring.alert import (
    ALL_UNREADY,
    ANY_FULL,
    BLOBS_MISSING,
    CONNECTED,
    DEAD_LETTERS_FAIL,
    NO_SPARK,
    NONE_READY,
    NOT_CONNECTED,
    READY,
    UNREADY,
    Alert,
    burn,
    event,
    owed,
)

_OLDEST = "max by (job) (rebaser_oldest_request_age_seconds)"

PAGES = (
    Alert(
        "NoServer",
        "page",
        f"""(
  (max by (job) (present_over_time(rebaser_ready[1d])) unless on (job) {READY})
  unless on (job) {NOT_CONNECTED}
  unless on (job) {NONE_READY}
)
or absent_over_time(rebaser_ready[1d])""",
        "no server is ready",
        "No server pulls tasks. Requests are stored and wait; clients get no answers. Nothing is lost.",
        (
            "`rebaser ping` and `rebaser status` show whether servers answer, and why they are not ready.",
            "The last events in the logs of the servers. A server that ends at once prints one line with the reason.",
        ),
        (
            "Start servers. If they do not start, `rebaser doctor` checks the installation.",
            "If this alert fires although servers run, Prometheus cannot reach their port (`REBASER_HTTP`).",
        ),
        hold=60,
    ),
    Alert(
        "NatsLost",
        "page",
        NOT_CONNECTED,
        "no server is connected to NATS",
        "No server can reach NATS, so no request is applied. Unless only the servers are cut off, clients cannot "
        "send requests, either.",
        (
            "`rebaser doctor`, run on another machine, shows whether NATS answers there.",
            "The log events `nats_disconnected` and `nats_reconnect_failed` of the servers contain the reason.",
        ),
        (
            "Restore NATS. Servers reconnect by themselves; a restart of servers does not help.",
            "If NATS refuses the servers, their credentials or certificates are wrong or have expired.",
            "If the reason is an error of name resolution, check the DNS of the servers' machines.",
        ),
        hold=30,
    ),
    Alert(
        "StreamsUnavailable",
        "page",
        UNREADY,
        "streams are missing, full or paused, or JetStream does not answer",
        "A server is connected to NATS, but cannot read, create or fill the streams, or gets no tasks from them. It is "
        "not ready, and `/readyz` says why.",
        (
            (
                "`rebaser status` shows which stream has a problem. The log event `server_unready`, or a later "
                "`unready_reason_changed`, contains the reason."
            ),
            "`nats stream report` shows whether each stream has a leader, and a majority of its copies.",
        ),
        (
            "If a stream or consumer is missing and servers may not create it, run `rebaser init`.",
            "If a stream has no leader, restore the NATS servers that hold its copies.",
            "If JetStream does not answer, check the disks and the logs of the NATS servers.",
            (
                "If NATS stores no messages, its disks are full, or JetStream has reached its limit (`max_file_store`, "
                "or that of the account). Until there is room, clients get `QueueFull`."
            ),
            "If somebody has paused a consumer, the reason contains the command that resumes it.",
        ),
        hold=30,
    ),
    Alert(
        "StreamLost",
        "page",
        f"{event('stream_lost', 'change_set_lost')} > 0",
        "a stream was lost with its contents",
        "A stream was deleted, or its storage was wiped, and servers created it again without its contents. Data "
        "may be lost.",
        (
            "`rebaser status` shows what was lost, until the servers restart.",
            "The log events `stream_lost` and `change_set_lost` contain the last sequences, and each change set.",
        ),
        (
            "Before anything else, find out who deleted the stream, and keep the volumes of NATS as they are.",
            (
                "If `REBASER_COMMITS` was lost, stop the servers and restore a backup: see [backup and "
                "restore](running.md#backup-and-restore)."
            ),
            "If only tasks or sweeps were lost, nothing is missing: servers replace them.",
        ),
    ),
    Alert(
        "RequestsStuck",
        "page",
        f"""(
  {_OLDEST} > 30 and {_OLDEST} - {_OLDEST.replace("seconds", "seconds offset 30s")} > 20
  or {_OLDEST} > 75
)
and on (job) {CONNECTED}
and on (job) {READY}
unless on (job) {ANY_FULL}
unless on (job) {DEAD_LETTERS_FAIL}
unless on (job) {ALL_UNREADY}""",
        "a request is stuck, or has waited for more than a minute",
        "The oldest request has been waiting for 30 s and is still the same one, or has been waiting for 75 s. The "
        "requests of at least one change set are not decided, and their senders get no answers. Other change sets may "
        "be unaffected.",
        (
            "`rebaser status` shows which change sets have waiting requests, and the newest problem of each server.",
            "`rebaser explain WS CS`, for such a change set, shows the most likely reason first.",
        ),
        (
            "Follow the advice that is shown with the reason.",
            "If the reason is `owner_stuck`, restart that server. Another server takes over, and nothing is lost.",
            "If many requests were sent to one change set at once, wait: they are decided in order.",
        ),
        hold=15,
    ),
    Alert(
        "AnswersSlow",
        "page",
        f"{burn('1h', '5m', 14.4)}\nor {burn('6h', '30m', 6)}",
        "too many requests take longer than a second",
        "The objective is to answer 99.9 % of requests within 1 s. The share of slow requests was 14 times the "
        "allowed share for an hour, or 6 times for six hours. Users notice this.",
        (
            (
                "`rebaser_request_queue_seconds`: if requests wait before an owner takes them, the fleet is too "
                "small, or owners are loading or moving. If they do not wait, `rebaser_append_seconds` shows "
                "whether NATS is slow."
            ),
            "The other alerts of this installation, above all SlowStorage, SlowNetwork, FleetFull and OwnersMove.",
        ),
        (
            (
                "Remove the cause that these metrics or alerts show. After a short outage, the alert ends by itself "
                "within the hour."
            ),
            "If your objective is different, change the 1 s (the bound of a bucket) or the 99.9 % in the rule.",
        ),
    ),
    Alert(
        "DerivedStale",
        "page",
        f"{owed(1800)} unless on (job) {NO_SPARK}",
        "derived values have been stale for half an hour",
        "An update of derived values has been due for 30 minutes. Requests are applied; readers see old derived "
        "values.",
        (
            "`rebaser status` shows which change sets need an update, and the progress of updates that run.",
            "`rebaser explain WS CS` shows whether the update runs, waits, fails or is postponed, and why.",
        ),
        (
            "If a function hangs, fix the plug-in. `REBASER_DVU_TIMEOUT` limits each attempt.",
            "If an update is too large for Spark, give Spark more memory or task slots.",
        ),
    ),
    Alert(
        "RequestsSkipped",
        "page",
        f"{event('requests_skipped')} > 0",
        "requests were skipped",
        "A server found requests that are older than its position in the queue, but have no recorded outcome. "
        "This should never happen. The requests may have been neither applied nor answered.",
        (
            "The log event `requests_skipped` contains the change set, the commit and the number of requests.",
            "`rebaser dlq list WS CS` lists the requests, with the code `skipped`.",
        ),
        (
            "Keep the logs, and find out whether a stream was restored, or its messages were deleted by hand.",
            "`rebaser dlq redrive WS CS` sends a request again; it is applied once.",
        ),
    ),
    Alert(
        "ForeignMessage",
        "page",
        f"{event('log_foreign_message')} > 0",
        "a log contains a message that no server wrote",
        "The log of a change set contains a message that no server wrote. The message changes no value, but it "
        "fences the owner. It was sent by mistake, or by an attacker.",
        (
            "The log event `log_foreign_message` contains the change set and the sequence of the message.",
            "`nats stream get REBASER_COMMITS SEQUENCE` shows the message.",
        ),
        (
            (
                "Find out which user may publish to `rebaser.commits.>`. Only servers and operators need this "
                "permission: [accounts](accounts.md)."
            ),
            "Nothing has to be repaired: readers skip the message.",
        ),
    ),
    Alert(
        "StreamFull",
        "page",
        'max by (job, stream) (rebaser_stream_full_ratio{stream!="sweep"}) > 0.95',
        "the stream of {stream} is full",
        "A stream has reached 95 % of its limit, and refuses messages when it is full. `requests`: clients get "
        "`QueueFull`. `commits` and `blobs`: nothing can be decided, or nothing large. `tasks`: servers learn of "
        "new work late. `dlq`: dead requests stay in their queues.",
        (
            "`rebaser status` shows the contents and the limits of all streams.",
            "`rebaser_stream_bytes` and `rebaser_stream_messages` show whether the stream grew slowly or in a burst.",
        ),
        (
            (
                "Raise the limit (`nats stream edit`, or `rebaser init` with the setting), if the disks of NATS "
                "have room."
            ),
            (
                "`requests`: add servers, or let senders wait. `dlq`: redrive or drop the dead letters. "
                "`commits`: shorten `REBASER_HISTORY_FOR`. `blobs`: `rebaser gc`."
            ),
        ),
        hold=30,
    ),
    Alert(
        "SparkDown",
        "page",
        f"{NO_SPARK} and on (job) {CONNECTED} and on (job) {READY}",
        "no server has Spark",
        "No server can compute derived values, so they become stale. Requests are applied and answered.",
        (
            "`rebaser status` shows the state of Spark on each server, with the reason.",
            "The log events `spark_down` and `spark_workers_lack` say what is missing on which host.",
        ),
        (
            (
                "Restart the Spark Connect server, or install what the event names: [Spark "
                "clusters](operating.md#spark-clusters). Servers connect by themselves, and then run the updates "
                "that are due."
            ),
        ),
        hold=120,
    ),
    Alert(
        "BlobsMissing",
        "page",
        BLOBS_MISSING,
        "blobs that logs refer to are missing in the blob store",
        "Blobs that are still needed disappear. Owners cannot load the change sets that need them, so requests wait. "
        "If a part of a checkpoint was missing while its owner had it in memory, the owner stored it again.",
        (
            (
                "The log events `checkpoint_incomplete`, and `load_failed` or `dvu_failed` with `code=blob_missing`, "
                "name the change set and the blob."
            ),
            (
                "`rebaser doctor WS CS`, for this change set and for other large ones, shows whether their logs can "
                "be read."
            ),
        ),
        (
            (
                "Find out why blobs are missing: an expiry rule of the bucket, another installation that uses the "
                "same store, a restored backup that is older than the logs, or a server that was started with another "
                "`REBASER_BLOBS`."
            ),
            "Restore the blobs from a backup; if there is none, [repair the log](operating.md#repairing-a-log).",
        ),
    ),
    Alert(
        "CommitUnstorable",
        "page",
        f"{event('commit_unreadable')} > 0",
        "a commit was not stored, because it could not be read back",
        "A server checks each commit before it stores it, and this one could not be read. Nothing is damaged, but "
        "the requests or the update in this commit cannot be completed.",
        (
            "The log event `commit_unreadable` contains the change set, the kind of commit and the reason.",
            "`rebaser explain WS CS` shows the first request in the queue.",
        ),
        (
            "Report it as a bug, with the event.",
            (
                "A request that fails this way goes to the dead letters after `REBASER_MAX_ATTEMPTS` attempts. "
                "Later requests are then decided."
            ),
        ),
    ),
)
