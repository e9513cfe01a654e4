"""Derives the reasons why a change set waits from the facts about it, and adds advice to each reason.

Invariant: the reason `quiet` is returned only if no request waits and no update is due. A cause comes before its
consequences.
"""

from collections.abc import Callable, Iterator

from rebaser_core.explain import surroundings
from rebaser_core.explain.facts import ChangeSetFacts, ServerFacts
from rebaser_core.explain.owner_facts import OwnerFacts
from rebaser_core.explain.reason import WaitReason, age, times
from rebaser_core.shell import command

LONG_LOAD = 20.0  # seconds after which a load is reported as stuck: a million values take about six
STUCK = 10.0  # seconds after which an owner that decides no requests is reported as stuck
SILENT = 20.0  # seconds without a value that is done, after which a function is reported as hanging
SILENT_JOB = 45.0  # the same if values are done only when a Spark job ends
LONG_UPDATE = 60.0  # seconds after which a running update is reported as possibly hanging
NO_VALUE_YET = 20.0  # seconds after which an update that has not computed a single value counts as long
QUIET, UPDATE = "quiet", "update"
NEWER = "unsupported_version"  # the error code of a message that only a newer release can read


def explain(facts: ChangeSetFacts) -> tuple[WaitReason, ...]:
    """Return at least one reason, beginning with the most likely one."""
    if facts.nats_problem:
        found = list(_nats(facts))
    else:
        found = [reason for rule in RULES for reason in rule(facts)]
        if facts.works and not any(reason.waits for reason in found):
            found.insert(0, _working(facts))
    found += surroundings.slow(facts)
    return tuple(found) or (_quiet(facts),)


def _nats(facts: ChangeSetFacts) -> Iterator[WaitReason]:
    servers = "" if facts.servers else "; no server answers either"
    yield WaitReason(
        "no_stream_leader",
        f"NATS answers, but its streams do not: {facts.nats_problem}{servers}",
        "check the NATS servers: a stream accepts nothing if it has no leader, or if most of its copies are offline; "
        "`nats stream report` shows the copies. Work resumes automatically once they are back.",
    )


def _log_readable(facts: ChangeSetFacts) -> Iterator[WaitReason]:
    log, doctor = facts.log, command("doctor", facts.workspace, facts.change_set)
    if log is not None and log.problem:
        yield WaitReason(
            "log_unreadable",
            f"the newest message of the log, {log.sequence}, cannot be read: {log.problem}",
            f"if a newer release wrote it, start servers of that release; otherwise `{doctor}` shows the "
            "damage, and what a repair would lose",
        )
    elif log is not None and log.checkpoint_problem:
        yield WaitReason(
            "checkpoint_unreadable",
            f"the newest checkpoint cannot be read: {log.checkpoint_problem}",
            "if servers have REBASER_BLOBS, set it here, too; if the blob store is down, restore it; "
            f"`{doctor}` shows whether the values can be rebuilt",
        )


def _servers(facts: ChangeSetFacts) -> Iterator[WaitReason]:
    waits = facts.works or facts.task is not None
    if not facts.servers:
        if not waits:
            return
        log = facts.log
        wrote = "" if log is None or not log.owner else f"; {log.owner} wrote the newest commit {age(log.age)} ago"
        yield WaitReason(
            "no_server",
            f"no server answers{wrote}",
            "start one with `rebaser serve`; if servers are running, they may be paused, have lost NATS (their logs "
            "and `/readyz` say why), use another NATS or another prefix, or be slow to answer (`rebaser ping --timeout "
            "10`)",
        )
    elif not any(server.ready for server in facts.servers):
        first = facts.servers[0]
        yield WaitReason(
            "server_not_ready",
            f"no server is ready; {first.id} reports: {first.trouble}",
            "run `rebaser doctor` to find out what is missing or wrong in the installation",
            waits=waits,
        )


def _held(facts: ChangeSetFacts) -> Iterator[WaitReason]:
    attempt = None if facts.log is None else facts.log.attempt
    if attempt is None or not facts.works:
        return
    about = facts.trouble
    why = f": {about.trouble}" if about is not None else ""
    if attempt.what == "request" and attempt.held and facts.queue.waiting:
        newer = about is not None and about.trouble_code == NEWER
        yield WaitReason(
            "newer_server_needed" if newer else "held",
            f"the first request cannot be decided yet, after {times(attempt.held, 'attempt')} in "
            f"{age(attempt.since)}{why}",
            ("start a server of the newer release" if newer else "remove the cause")
            + "; the request is tried again every few seconds, and moved to the dead letters after REBASER_RETRY_FOR",
        )
    elif attempt.deaths and attempt.what == UPDATE:
        if facts.owner is None:
            yield _put_off(f"{times(attempt.deaths, 'server')} died or hung while it ran the update{why}")
    elif attempt.deaths:
        yield WaitReason(
            "on_probation",
            f"a server that owned this change set died or hung, so the first {attempt.what} is tried alone{why}",
            "wait: if it kills more servers, it is moved to the dead letters, and the other requests are decided",
        )


def _owned(facts: ChangeSetFacts) -> Iterator[WaitReason]:
    if facts.owner is None or not (facts.works or facts.task is not None):
        return
    server, about = facts.owner
    yield from _by_phase(facts, server, about)
    if about.phase not in ("no_slot", "loading") and facts.log is not None and facts.log.debt:
        yield from _update(server, about)


def _by_phase(facts: ChangeSetFacts, server: ServerFacts, about: OwnerFacts) -> Iterator[WaitReason]:
    again = f" for the {about.deliveries}th time" if about.deliveries > 1 else ""
    trouble = f"; the last failure: {about.trouble}" if about.trouble else ""
    if about.phase == "no_slot":
        yield _slots_full(facts, f"server {server.id} has the task, but it has no free slot")
    elif about.phase == "loading":
        reads = f": it reads {about.reading}" if about.reading else ""
        stuck, doctor = about.idle > LONG_LOAD, command("doctor", facts.workspace, facts.change_set)
        yield WaitReason(
            "load_stuck" if stuck else "loading",
            f"server {server.id} is loading the change set{again}, for {age(about.idle)}{reads}{trouble}",
            "if it reads a blob, check the blob store (REBASER_BLOBS); if it reads plug-ins, the import of one of them "
            f"blocks; otherwise, check NATS. `{doctor}` reads the log, too"
            if stuck
            else "wait: a large change set takes seconds to load; if it is loaded repeatedly, see the last failure, "
            f"and check the log with `{doctor}`",
        )
    elif about.phase == "deciding" and not surroundings.slow_append(facts):
        stuck = min(about.idle, facts.queue.oldest) > STUCK
        yield WaitReason(
            "owner_stuck" if stuck else "deciding",
            f"server {server.id} is deciding requests"
            + (f", and has decided none for {age(about.idle)}{trouble}" if stuck else ""),
            f"see the log messages of {server.id}; if it stays like this, restart it: another server takes over, and "
            "nothing is lost"
            if stuck
            else "wait",
        )
    elif about.phase not in ("active", "deciding"):
        yield WaitReason(
            "handing_over",
            f"server {server.id} is giving up the change set{f' ({about.stopping})' if about.stopping else ''}",
            "wait: the next owner takes over within about a second",
        )


def _update(server: ServerFacts, about: OwnerFacts) -> Iterator[WaitReason]:
    if server.spark == "starting":
        yield WaitReason("spark_starting", f"the update waits for Spark, which is starting on {server.id}", "wait")
    elif server.spark != "ready":
        yield WaitReason(
            "spark_down",
            f"the update waits for Spark: {server.spark} on {server.id}",
            "restore Spark (`--spark`, REBASER_SPARK); requests are still applied, and updates resume automatically",
        )
    elif about.update == "waiting" and not about.failures:
        yield _put_off(f"the update is deferred for {age(about.retry_in)}: {about.trouble or 'it killed servers'}")
    elif about.update == "waiting":
        yield WaitReason(
            "dvu_waiting",
            f"the update failed {times(about.failures, 'time')}; the next attempt is in "
            f"{age(about.retry_in)}" + (f"; the last failure: {about.trouble}" if about.trouble else ""),
            "remove the cause of the failure; the update is retried at least every 30 s until it succeeds",
        )
    elif about.update == "running":
        total = "it is being planned" if not about.total else f"{100 * about.done // about.total} % of {about.total:,}"
        hangs = about.silent > (SILENT if about.sees_jobs else SILENT_JOB)
        if hangs and (about.function or not about.spark_waits):
            yield _hanging(server, about, total)
            return
        stands = about.sees_jobs and about.total and not about.done
        slow = about.update_seconds > (NO_VALUE_YET if stands else LONG_UPDATE)
        yield WaitReason(
            "dvu_running",
            f"server {server.id} has been updating derived values for {age(about.update_seconds)}: {total}",
            "if it makes no progress, a function may be slow or hang: the Spark UI shows the task, and "
            "REBASER_DVU_TIMEOUT limits the time of an attempt"
            if slow
            else "wait",
        )
    elif about.update == "owed":
        yield WaitReason("dvu_due", f"an update is due on server {server.id}", "wait: it begins within moments")


def _hanging(server: ServerFacts, about: OwnerFacts, total: str) -> WaitReason:
    function = f", because the function {about.function} runs" if about.function else ""
    return WaitReason(
        "dvu_hangs",
        f"server {server.id} has been updating derived values for {age(about.update_seconds)}: {total}, and none "
        f"of them in the last {age(about.silent)}{function}",
        "a function is very slow or hangs: fix the plug-in, or remove the values that use it; the Spark UI shows the "
        "task, and REBASER_DVU_TIMEOUT limits the time of an attempt",
    )


def _put_off(text: str) -> WaitReason:
    return WaitReason(
        "dvu_put_off",
        text,
        "look for a function that needs too much memory or never returns; the update is retried after a pause that "
        "grows up to 10 minutes, and requests are still applied",
    )


def _unowned(facts: ChangeSetFacts) -> Iterator[WaitReason]:
    """Yield the reason why no server is working on the change set. For instance, it may have no task, or no server may
    have received the task."""
    if facts.owner is not None or not facts.servers or not facts.works:
        return
    task, about = facts.task, facts.trouble
    if task is None:
        yield WaitReason(
            "not_published",
            "no server knows about the work, because the change set has no task",
            "wait: the sweeper publishes the task within two intervals (REBASER_SWEEP_INTERVAL, 10 s each by default); "
            "any further request also publishes it",
        )
    elif not task.delivered and task.paused:
        yield WaitReason(
            "tasks_paused",
            "the delivery of all tasks is paused, so servers get no new work",
            "resume it with `nats consumer resume REBASER_TASKS rebaser-tasks`",
        )
    elif not task.delivered:
        free = any(server.ready and server.owned < server.slots for server in facts.servers)
        # While other tasks are ahead and servers ask for tasks, the task is only waiting for its turn.
        if free and task.age > STUCK and not (task.ahead and task.pulls):
            yield WaitReason(
                "task_not_taken",
                f"no server has taken the task for {age(task.age)}, though servers have free slots; "
                f"{times(task.pulls, 'server')} asked for tasks",
                "see the log messages of the servers; spare servers (REBASER_OVERFLOW_PENDING) take tasks only while "
                "many wait",
            )
        elif free and not task.ahead:
            yield WaitReason("task_on_its_way", f"the task is {age(task.age)} old, and servers have free slots", "wait")
        else:
            yield _slots_full(facts, f"the task waits for a free slot; {task.ahead:,} other tasks are ahead of it")
    elif about is not None and about.trouble:
        yield WaitReason(
            "failing",
            f"the last owner gave up the change set: {about.trouble}",
            "remove the cause of the failure; servers retry at least every 5 s",
        )
    elif all(server.about is not None for server in facts.servers):
        last = "" if facts.log is None or not facts.log.owner else f" (the newest commit is by {facts.log.owner})"
        yield WaitReason(
            "lease_running_out",
            f"a server has the task, but does not answer{last}: it may have died, or it is paused or disconnected",
            f"wait: another server takes over at most {task.ack_wait:g} s after the server fell silent; if none does, "
            "the server is alive, but its network or machine is slow (`rebaser ping --timeout 10`)",
        )


def _slots_full(facts: ChangeSetFacts, text: str) -> WaitReason:
    owned, slots = (sum(getattr(server, name) for server in facts.servers) for name in ("owned", "slots"))
    return WaitReason(
        "slots_full",
        f"{text} ({owned:,} change sets owned, {slots:,} slots)",
        "wait, because change sets take turns; if this lasts, start more servers or raise REBASER_CONCURRENCY",
    )


def _working(facts: ChangeSetFacts) -> WaitReason:
    """Return the reason that is reported if there is work, but no rule explains why the work is waiting."""
    return WaitReason(
        "working",
        f"{times(facts.queue.waiting, 'request')} in the queue"
        + ("; an update is due" if facts.log is not None and facts.log.debt else ""),
        "run this command again, because the work may be done by now; if this lasts, see `rebaser status` and the logs "
        "of the servers",
    )


def _quiet(facts: ChangeSetFacts) -> WaitReason:
    if facts.log is None:
        return WaitReason("unknown", "this change set has never received a request", "see `rebaser list`", waits=False)
    if facts.log.errors:
        failing = "1 value is" if facts.log.errors == 1 else f"{facts.log.errors:,} values are"
        each = command("explain", facts.workspace, facts.change_set, "ID")
        return WaitReason(
            QUIET,
            f"nothing waits, but {failing} in error; derived values are up to date as of commit {facts.log.sequence}",
            f"`{each}` explains why a value is in error",
            waits=False,
        )
    return WaitReason(
        QUIET, f"nothing waits: requests and values are up to date as of commit {facts.log.sequence}", "", False
    )


# Reasons are reported in the order of these rules: a cause comes before its consequences.
RULES: tuple[Callable[[ChangeSetFacts], Iterator[WaitReason]], ...] = (
    _log_readable,
    _servers,
    surroundings.refused_letters,
    surroundings.full,
    surroundings.append,
    _held,
    _owned,
    _unowned,
    surroundings.queue,
    surroundings.dead,
    surroundings.functions,
    surroundings.branch,
    surroundings.inherited,
)
