"""Alerts that call somebody: users notice now, or data is in danger."""

from tests.monitoring.alert import CONNECTED, LOG_FULL, NO_SPARK, NOT_CONNECTED, READY, Alert, burn, event

PAGES = (
    Alert(
        "NoServer",
        "page",
        f"""(
  (max by (job) (present_over_time(rebaser_ready[1d])) unless on (job) {READY})
  unless on (job) {NOT_CONNECTED}
)
or absent_over_time(rebaser_ready[1d])""",
        "no server is ready",
        "No server pulls tasks. Requests are stored and wait; clients get no answers. Nothing is lost.",
        (
            "`rebaser ping` and `rebaser status`: whether servers answer, and why they are not ready.",
            "The last events of the servers' logs. A server that ends at once prints one line with the reason.",
        ),
        (
            "Start servers. If they do not start, `rebaser doctor` checks the installation.",
            "If servers run and this alert fires, Prometheus does not reach their port (`REBASER_HTTP`).",
        ),
        hold=60,
    ),
    Alert(
        "NatsLost",
        "page",
        NOT_CONNECTED,
        "no server is connected to NATS",
        "No server can reach NATS, so nothing works. Clients cannot send, either, unless only the servers are cut off.",
        (
            "`rebaser doctor`: whether NATS answers from another machine.",
            "The log events `nats_disconnected` and `nats_reconnect_failed` of the servers, which have the reason.",
        ),
        (
            "Bring NATS back. Servers reconnect by themselves; a restart of servers does not help.",
            "If NATS refuses the servers, their credentials or certificates are wrong or have expired.",
        ),
        hold=30,
    ),
    Alert(
        "StreamsUnavailable",
        "page",
        """max by (job) (
  sum by (job, instance) (rebaser_log_events_total{event="server_unready"})
  - sum by (job, instance) (rebaser_log_events_total{event="server_ready_again"})
  and on (job, instance) rebaser_nats_connected == 1
) > 0""",
        "streams are missing, or JetStream does not answer",
        "A server is connected to NATS, but cannot read or create the streams. It is not ready, and `/readyz` says"
        " why.",
        (
            "`rebaser status`: which stream has a problem; the log event `server_unready` has the reason.",
            "`nats stream report`: whether each stream has a leader, and a majority of its copies.",
        ),
        (
            "If a stream or consumer is missing and servers may not create it, run `rebaser init`.",
            "If a stream has no leader, bring the NATS servers back that hold its copies.",
            "If JetStream is silent, look at the disks and the log of the NATS servers.",
        ),
        hold=30,
    ),
    Alert(
        "StreamLost",
        "page",
        f"{event('stream_lost', 'change_set_lost')} > 0",
        "a stream was lost with its contents",
        "A stream was deleted, or its storage was wiped, and servers created it again, empty. Data may be lost.",
        (
            "`rebaser status`: what was lost, for as long as the servers run.",
            "The log events `stream_lost` and `change_set_lost`: the last sequences, and each change set.",
        ),
        (
            "Before anything else, find out who deleted the stream, and keep the volumes of NATS as they are.",
            (
                "If `REBASER_COMMITS` was lost, stop the servers and restore a backup: see"
                " [backup and restore](running.md#backup-and-restore)."
            ),
            "If only tasks or sweeps were lost, nothing is missing: servers replace them.",
        ),
    ),
    Alert(
        "RequestsStuck",
        "page",
        f"""max by (job) (rebaser_oldest_request_age_seconds) > 60
and on (job) {CONNECTED}
and on (job) {READY}
unless on (job) {LOG_FULL}""",
        "a request has waited for more than a minute",
        "At least one change set decides no requests. The others may be well. Whoever sent the request has no answer.",
        (
            "`rebaser status`: which change sets have waiting requests, and the newest trouble of each server.",
            "`rebaser explain WS CS` for such a change set: the first reason is the place to begin.",
        ),
        (
            "Do what the reason says.",
            "If the reason is `owner_stuck`, restart that server: another takes over, and nothing is lost.",
        ),
        hold=30,
    ),
    Alert(
        "AnswersSlow",
        "page",
        f"{burn('1h', '5m', 14.4)}\nor {burn('6h', '30m', 6)}",
        "too many requests take longer than a second",
        "More requests are slow than an objective of 99.9 % within 1 s allows: 14 times as many for an hour, or 6"
        " times"
        " as many for six hours. Users feel it.",
        (
            (
                "`rebaser_request_queue_seconds`: if requests wait before an owner takes them, the fleet is too small,"
                " or owners load or move. If they do not, `rebaser_append_seconds` shows whether NATS is slow."
            ),
            "The other alerts of this installation, above all SlowStorage, SlowNetwork, FleetFull and OwnersMove.",
        ),
        (
            "Remove the cause that these show. After a short outage, the alert ends by itself within the hour.",
            "If your objective is another one, change the 1 s (one of the buckets) or the 99.9 % in the rule.",
        ),
    ),
    Alert(
        "DerivedStale",
        "page",
        f"max by (job) (rebaser_debt_age_seconds_max) > 1800 unless on (job) {NO_SPARK}",
        "derived values have been stale for half an hour",
        "An update of derived values has been due for 30 minutes. Requests are applied; readers see old derived"
        " values.",
        (
            "`rebaser status`: which change sets need an update, and how far a running one is.",
            "`rebaser explain WS CS`: whether the update runs, waits, fails or is put off, and why.",
        ),
        (
            "A function that hangs: mend the plug-in. `REBASER_DVU_TIMEOUT` ends each attempt.",
            "An update that is too large for Spark: give Spark more memory or task slots.",
        ),
    ),
    Alert(
        "RequestsSkipped",
        "page",
        f"{event('requests_skipped')} > 0",
        "requests were skipped",
        "A server found requests behind its position in the queue whose outcome nobody recorded. This should never"
        " happen: a request may have been neither applied nor answered.",
        (
            "The log event `requests_skipped`: its change set, commit and count.",
            "`rebaser dlq list WS CS`: the requests are there, with the code `skipped`.",
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
        "somebody else wrote to a log",
        "The log of a change set holds a message that no server wrote. It changes no value, but it fences the owner."
        " It is a mistake with a tool, or an attack.",
        (
            "The log event `log_foreign_message`: the change set and the sequence of the message.",
            "`nats stream get REBASER_COMMITS SEQUENCE`: what was written.",
        ),
        (
            (
                "Find out which user may publish to `rebaser.commits.>`. Only servers and operators need this right:"
                " [accounts](accounts.md)."
            ),
            "Nothing has to be repaired: readers skip the message.",
        ),
    ),
    Alert(
        "StreamFull",
        "page",
        'max by (job, stream) (rebaser_stream_full_ratio{stream!="sweep"}) > 0.95',
        "the stream of {stream} is full",
        "A stream has reached 95 % of its limit, and refuses messages when it is full. `requests`: clients get"
        " `QueueFull`. `commits` and `blobs`: nothing can be decided, or nothing large. `tasks`: servers do not"
        " learn of"
        " work at once. `dlq`: dead requests stay in their queues.",
        (
            "`rebaser status`: contents and limits of all streams.",
            "`rebaser_stream_bytes` and `rebaser_stream_messages`: whether it grew slowly or in a burst.",
        ),
        (
            (
                "Raise the limit (`nats stream edit`, or `rebaser init` with the setting), if the disks of NATS have"
                " room."
            ),
            (
                "`requests`: add servers, or let senders wait. `dlq`: work off the dead letters. `commits`: shorten"
                " `REBASER_HISTORY_FOR`. `blobs`: `rebaser gc`."
            ),
        ),
        hold=30,
    ),
    Alert(
        "SparkDown",
        "page",
        f"{NO_SPARK} and on (job) {CONNECTED} and on (job) {READY}",
        "no server has Spark",
        "No server can compute. Requests are applied and answered; derived values stay as they are.",
        (
            "`rebaser status`: why Spark is down, as each server sees it.",
            "The log events `spark_down` and `spark_workers_lack`: what is missing on which host.",
        ),
        (
            (
                "Restart the Spark Connect server, or install what the event names:"
                " [Spark clusters](operating.md#spark-clusters). Servers connect by themselves, and updates follow."
            ),
        ),
        hold=120,
    ),
    Alert(
        "BlobsMissing",
        "page",
        f"{event('checkpoint_incomplete')} > 0",
        "a part of a checkpoint is missing in the blob store",
        "Blobs disappear that are still needed. The server stored this checkpoint again, whole; but large commits and"
        " requests may have lost blobs, too.",
        (
            "The log event `checkpoint_incomplete`: which change set.",
            "`rebaser doctor WS CS`, for this change set and for other large ones: whether their logs can be read.",
        ),
        (
            (
                "Find out what deletes blobs: a rule of the bucket that expires objects, another installation that uses"
                " the"
                " same store, or a restore that was older than the logs."
            ),
            "Restore the blobs from a backup; if there is none, [repair the log](operating.md#repairing-a-log).",
        ),
    ),
    Alert(
        "CommitUnstorable",
        "page",
        f"{event('commit_unreadable')} > 0",
        "a commit was not stored, because it could not be read back",
        "A server checks each commit before it stores it, and this one could not be read. Nothing is damaged, but the"
        " requests or the update that it was made of cannot go on.",
        (
            "The log event `commit_unreadable`: the change set, the kind of commit and the reason.",
            "`rebaser explain WS CS`: which request is the first.",
        ),
        (
            "Report it as a bug, with the event.",
            (
                "A request that fails this way goes to the dead letters after `REBASER_MAX_ATTEMPTS`, and the others go"
                " on."
            ),
        ),
    ),
)
