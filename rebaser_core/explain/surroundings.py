"""Derives reasons from everything around a change set: its streams, branch and dead letters, the network, and the
clocks."""

from collections.abc import Iterator

from rebaser_core.explain.facts import ChangeSetFacts
from rebaser_core.explain.reason import WaitReason, age, times
from rebaser_core.shell import command

NEARLY_FULL = 95.0  # percentage of its size limit from which a stream is reported as full
SLOW_TRIP = 0.25  # seconds; a round trip to NATS that takes longer is reported as slow
BUSY = 0.25  # seconds; an event loop that is late by more than this is reported
SLOW_APPEND = 0.5  # seconds; an append to the log that takes longer, beyond the round trip, is reported as slow
SLOW_ANSWER = 1.0  # seconds; an answer from JetStream that takes longer is reported as slow
SKEW = 10.0  # seconds; a clock that is off by more than this is reported
NATS, HERE = "NATS", "this machine"  # whose clocks are compared, beside those of servers
REFUSED = "commit_refused"  # the error code if NATS did not store an owner's commit
CHECK_DISKS = "check the disks and the load of the NATS servers"
LETTER_REFUSED = "dead_letter_refused"  # the error code if NATS did not store a dead letter
LETTER_RETRIED = 15.0  # seconds; an owner sends a dead letter again sooner than this, so an older failure is over
# In the error of a stream that is full. One small message may still fit.
AT_LIMIT = ("maximum bytes exceeded", "maximum messages exceeded")


def _at_limit(refusal: str) -> bool:
    return any(text in refusal for text in AT_LIMIT)


def _letter_refused(facts: ChangeSetFacts) -> str:
    """Return why NATS does not store a dead letter of the change set; empty if it does. Later commits do not show that
    it does."""
    for server in facts.servers:
        about = server.about
        if about is not None and about.trouble_code == LETTER_REFUSED and about.trouble_age < LETTER_RETRIED:
            return about.trouble
    return ""


def refused_letters(facts: ChangeSetFacts) -> Iterator[WaitReason]:
    letter = _letter_refused(facts)
    if _at_limit(letter):
        yield from _letters_full(facts, letter)
    elif letter:
        yield WaitReason(
            "dead_letters_refused",
            f"{letter}: the request stays in its queue, and its sender gets no answer",
            "`rebaser status` shows whether the stream of dead letters has room; if somebody changed it by hand, "
            "`rebaser init --check` shows what differs",
        )


def _letters_full(facts: ChangeSetFacts, letter: str) -> Iterator[WaitReason]:
    for stream in facts.streams:
        used = stream.percent_full or 0.0
        if stream.role == "dlq" and (letter or used >= NEARLY_FULL):
            yield WaitReason(
                "dead_letters_full",
                f"stream {stream.name} is {used:g} % full: requests that cannot be processed stay in their queues, and "
                "their senders get no answers",
                "raise its limit (`nats stream edit`), or redrive or drop dead letters (`rebaser dlq list`)",
                waits=bool(letter),
            )


def full(facts: ChangeSetFacts) -> Iterator[WaitReason]:
    refused = facts.trouble.trouble if facts.works and facts.trouble and facts.trouble.trouble_code == REFUSED else ""
    at_limit = _at_limit(refused)
    if refused and not at_limit:
        yield WaitReason(
            "commits_refused",
            f"{refused}: requests cannot be decided, and updates cannot be stored",
            "if JetStream lacks resources, free the disks of the NATS servers or raise its limits (max_file_store, "
            "limits of the account); otherwise, somebody changed the stream by hand: compare it with `rebaser init`",
        )
    for stream in facts.streams:
        used = stream.percent_full or 0.0
        if used < NEARLY_FULL and not (stream.role == "commits" and at_limit):
            continue
        code, effect = {
            "commits": ("log_full", "requests cannot be decided, and updates cannot be stored"),
            "requests": ("requests_full", "new requests are refused"),
            "tasks": ("tasks_full", "servers may not learn of new work"),
            "blobs": ("blobs_full", "large commits and checkpoints cannot be stored"),
        }.get(stream.role, ("", ""))
        if code:
            yield WaitReason(
                code,
                f"stream {stream.name} is {used:g} % full: {effect}",
                "raise its limit (`nats stream edit`), or find out with `rebaser status` what fills it",
                waits=facts.works and stream.role != "requests",
            )
    for stream in facts.streams:
        if stream.copies_behind:
            yield WaitReason(
                "copies_behind",
                f"{stream.copies_behind} of {stream.copies} copies of stream {stream.name} are behind or offline",
                "check the NATS servers; without a majority of the copies, nothing can be stored",
                waits=False,
            )


def slow_append(facts: ChangeSetFacts) -> float:
    """Return the seconds for which the append of the owner waits, or that its last one took, if NATS is the cause; 0 if
    neither is slow, or if the server or its network is slow as a whole."""
    about = None if facts.owner is None else facts.owner[1]
    if about is None or about.lag > BUSY or about.rtt > SLOW_TRIP:
        return 0.0
    seconds = max(about.append_waits, about.append_took)
    return seconds if seconds > SLOW_APPEND + about.rtt else 0.0


def append(facts: ChangeSetFacts) -> Iterator[WaitReason]:
    seconds = slow_append(facts)
    if facts.owner is None or not seconds:
        return
    server, about = facts.owner
    text = (
        f"NATS has not stored a commit of server {server.id} for {age(seconds)}"
        if about.append_waits >= seconds
        else f"NATS took {age(seconds)} to store the newest commit of server {server.id}"
    )
    yield WaitReason(
        "slow_storage",
        f"{text}, though a round trip takes {age(about.rtt)}",
        f"{CHECK_DISKS}; if a stream has no leader (`nats stream report`), start the servers that hold its copies",
        waits=facts.works,
    )


def queue(facts: ChangeSetFacts) -> Iterator[WaitReason]:
    waiting, limit = facts.queue.waiting, facts.queue.limit
    if limit and waiting >= limit:
        yield WaitReason(
            "queue_full",
            f"the queue is full ({waiting:,} requests), so new requests are refused",
            "wait until requests are decided; senders retry automatically",
        )


def functions(facts: ChangeSetFacts) -> Iterator[WaitReason]:
    missing = () if facts.log is None else facts.log.missing
    if not missing:
        return
    names = ", ".join(missing[:5]) + (" …" if len(missing) > 5 else "")
    having = [server.id for server in facts.servers if server.functions.issuperset(missing)]
    yield WaitReason(
        "function_missing",
        f"values use functions that are missing on the last owner: {names}",
        f"wait: {having[0]} has these functions, and computes the values when it owns the change set"
        if having
        else "install the plug-in with these functions on the servers; until then, these values are in error",
        waits=False,
    )


def branch(facts: ChangeSetFacts) -> Iterator[WaitReason]:
    about, names = facts.branch, (facts.workspace, facts.change_set)
    if about.status == "deleted":
        yield WaitReason(
            "deleted", "the change set is deleted", f"run `{command('reopen', *names)}` to restore it", waits=False
        )
        return
    if about.status != "open":
        yield WaitReason(
            "closed",
            f"the change set is closed ({about.status}), so edits are refused",
            f"run `{command('reopen', *names)}` to edit this change set",
            waits=False,
        )
    if about.protected:
        branch = command("branch", facts.workspace, "NAME", options=("--from", facts.change_set))
        yield WaitReason(
            "protected",
            "the change set is protected: it refuses edits, and accepts applied branches",
            f"create a branch, edit and apply it: `{branch}`",
            waits=False,
        )
    if about.conflicts:
        yield WaitReason(
            "conflicts",
            f"{times(about.conflicts, 'value')} in conflict with {about.target}, so the branch cannot be applied",
            f"run `{command('conflicts', *names)}`, which shows the conflicts, and how to settle each of them",
            waits=False,
        )
    elif about.behind and about.status == "open":
        yield WaitReason(
            "behind",
            f"{about.target} was edited since the base of this branch",
            f"run `{command('rebase', *names)}` to take over these edits; `rebaser apply` does so automatically",
            waits=False,
        )


def dead(facts: ChangeSetFacts) -> Iterator[WaitReason]:
    letters = facts.dead
    if not _letter_refused(facts):
        yield from _letters_full(facts, "")
    if letters is not None and letters.count:
        yield WaitReason(
            "dead_letters",
            f"{times(letters.count, 'request')} could not be processed; the newest, {age(letters.age)} ago, is "
            f"{letters.request_id} ({letters.code}): {letters.reason}",
            f"list them with `{command('dlq list', facts.workspace, facts.change_set)}`, remove the cause, and send "
            "them again with `rebaser dlq redrive`",
            waits=False,
        )


def inherited(facts: ChangeSetFacts) -> Iterator[WaitReason]:
    log = facts.log
    if log is not None and not log.debt and not log.problem and log.sequence > 0 and log.covers < log.sequence:
        yield WaitReason(
            "inherited_debt",
            "some derived values were not up to date when the branch was created, and are computed once it is used",
            "send a request to the branch, or wait for derived values (`--wait derived`), to have them computed",
            waits=False,
        )


def slow(facts: ChangeSetFacts) -> Iterator[WaitReason]:
    """Yield the reasons that concern all change sets, such as a slow network or a wrong clock."""
    busy = {server.id: server.about.lag for server in facts.servers if server.about and server.about.lag > BUSY}
    for id_, lag in busy.items():
        yield WaitReason(
            "server_busy",
            f"server {id_} is short of processor time: its event loop is late by {age(lag)}",
            f"give {id_} more CPU, or fewer change sets (REBASER_CONCURRENCY); if other code computes in its event "
            "loop, the log event loop_blocked shows it",
            waits=False,
        )
    # A busy server also measures long round trips.
    trips = {server.id: server.about.rtt for server in facts.servers if server.about and server.id not in busy}
    slowest = max(trips, key=lambda id_: trips[id_], default="")
    if trips and trips[slowest] > SLOW_TRIP:
        yield WaitReason(
            "slow_network",
            f"a round trip from server {slowest} to NATS takes {age(trips[slowest])}",
            f"check the network between {slowest} and NATS",
            waits=False,
        )
    if facts.rtt > SLOW_TRIP:
        yield WaitReason(
            "slow_network",
            f"a round trip from here to NATS takes {age(facts.rtt)}",
            "check the network between this machine and NATS",
            waits=False,
        )
    elif facts.api_seconds > SLOW_ANSWER + facts.rtt and not slow_append(facts):
        yield WaitReason(
            "slow_storage",
            f"JetStream took {age(facts.api_seconds)} to answer, though a round trip takes {age(facts.rtt)}",
            CHECK_DISKS,
            waits=False,
        )
    yield from _clocks(facts)


def _clocks(facts: ChangeSetFacts) -> Iterator[WaitReason]:
    """Name the clocks that are wrong: those that differ from most of the others. In a tie, NATS's clock counts as
    right, because ages are measured with it."""
    ahead = {HERE: facts.skew} if facts.nats_problem else {NATS: 0.0, HERE: facts.skew}
    for server in facts.servers:
        if server.about is not None and server.about.skew is not None:
            ahead[f"server {server.id}"] = facts.skew + server.about.skew
    log = facts.log
    if log is not None and log.owner and f"server {log.owner}" not in ahead:  # it ended, or its release is too old
        ahead[f"server {log.owner}"] = log.skew
    agreeing = {name: sum(abs(other - one) <= SKEW for other in ahead.values()) for name, one in ahead.items()}
    right = max(agreeing, key=lambda name: agreeing[name])
    for name, seconds in ahead.items():
        skew = seconds - ahead[right]
        if abs(skew) > SKEW:
            yield WaitReason(
                "clock_wrong",
                f"the clock of {name} is {age(abs(skew))} {'ahead of' if skew > 0 else 'behind'} that of {right}",
                f"synchronize the clock of {name} (NTP): times and retries depend on it, but not the order of requests",
                waits=False,
            )
