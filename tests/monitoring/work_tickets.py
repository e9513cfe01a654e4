"""Alerts on requests, updates of derived values, branches and permissions.

They can wait for working hours: nothing is lost, but the problem does not go away by itself.
"""

from tests.monitoring.alert import ANY_FULL, BLOBS_MISSING, DEAD_LETTERS_FAIL, NO_SPARK, UNREADY, Alert, event, owed

_FAILING = 'sum by (job) (increase(rebaser_dvu_seconds_count{result="failed"}[15m])) > 3'

_HANGS = """max by (job, instance) (rebaser_dvu_silent_seconds_max) > 45
and on (job, instance) rebaser_spark_up == 1
unless on (job, instance) max by (job, instance) (rebaser_spark_calls_waiting) > 0"""

WORK = (
    Alert(
        "DerivedSlow",
        "ticket",
        f"""{owed(60)}
unless on (job) {owed(1800)}
unless on (job) {NO_SPARK}
unless on (job) {_FAILING}
unless on (job) ({_HANGS})""",
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
        "UpdateHangs",
        "ticket",
        f"""{_HANGS}
unless on (job) {owed(1800)}""",
        "an update of derived values on {instance} makes no progress",
        "Spark runs an update, but has processed none of its values for 45 s: a function is very slow, or hangs. Other "
        "updates wait if such functions occupy all places of Spark. Requests are applied.",
        (
            "`rebaser status` shows the updates that run, and how many of their values are done.",
            "`rebaser explain WS CS` shows the reason `dvu_hangs`, with the function if it is known.",
            "The Spark UI shows the tasks that run, and how long. On a cluster, values count when their job ends.",
        ),
        (
            "Fix the plug-in, or remove the values that use the function.",
            "`REBASER_DVU_TIMEOUT` ends an attempt. Functions that call other systems need a time limit of their own.",
            "If jobs of your largest change sets take this long, raise the 45 s in the rule.",
        ),
    ),
    Alert(
        "UpdatesFail",
        "ticket",
        f"""{_FAILING}
unless on (job) {BLOBS_MISSING}
unless on (job) {event("dvu_broken", "dvu_job_broken")} > 0
unless on (job) {NO_SPARK}""",
        "updates of derived values fail",
        "Updates fail and are tried again, at least every 30 s. Derived values are stale. An error in a value "
        "does not make an update fail, so the cause is another one.",
        (
            "The log event `dvu_failed` contains the reason.",
            "`rebaser explain WS CS` shows the reason `dvu_waiting`.",
        ),
        (
            "If an update took too long (`late`), a function hangs, or Spark is too small; see `REBASER_DVU_TIMEOUT`.",
            "If a worker reached a limit of memory, raise the limit that the event names.",
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
        "FunctionCrashes",
        "ticket",
        f"{event('value_crashed')} > 0",
        "a function ended the process that computed it",
        "A function of a plug-in killed its process, or used more memory than the process may use. Its value has the "
        "error `crashed`, with the name of the function. All other values are computed, but each such update takes "
        "longer, because Spark starts workers again.",
        (
            "The log event `value_crashed` contains the change set, the value, the function and how the process ended.",
            "`rebaser get WS CS` shows the error, `rebaser explain WS CS ID` the values that depend on it.",
        ),
        (
            "Fix the plug-in, or remove the values that use it.",
            "If the process ended by SIGKILL, give Spark's workers more memory, or give the function smaller inputs.",
        ),
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
        "DeadLettersFail",
        "ticket",
        f"""{DEAD_LETTERS_FAIL}
unless on (job) {ANY_FULL}
unless on (job) {UNREADY}
unless on (job) {event("nats_not_allowed", window="2m")} > 0""",
        "dead letters cannot be stored",
        "A request cannot be processed, and NATS does not store the copy in the stream of dead letters. The request "
        "stays in its queue, and its sender gets no answer, until the copy is stored. Later requests are decided.",
        (
            "The log event `dead_letter_failed` contains the change set and the reason.",
            "`rebaser explain WS CS` shows the reason `dead_letters_full` or `dead_letters_refused`.",
            "`rebaser status` shows the stream `REBASER_DLQ`, its contents and its limits.",
        ),
        (
            "If the letter does not fit, raise the limit of the stream (`nats stream edit`), or drop old dead letters.",
            "If somebody changed the stream by hand, compare it with `rebaser init`.",
        ),
    ),
    Alert(
        "RequestsHeld",
        "ticket",
        'sum by (job, code) (increase(rebaser_requests_held_total{code!="internal"}[5m])) > 2',
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
        f"{event('branch_pull_failed')} > 3",
        "branches cannot follow their targets",
        "A server fails to bring a branch up to date with its target, and tries again. The branch keeps its values.",
        (
            "The log event `branch_pull_failed` contains the reason.",
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
            "The log event `nats_not_allowed`, or another event with `code=not_allowed`, contains the subject.",
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
