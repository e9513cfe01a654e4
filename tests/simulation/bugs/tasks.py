"""Bugs in tasks and dependent values updates: who owns a change set, and what it owes."""

from tests.simulation.bugs.bug import bug

LIFECYCLE = "rebaser.change_set.lifecycle"
OWNER = "rebaser.change_set.owner"
PROCESSOR = "rebaser.change_set.processor"
DRAFTS = "rebaser.change_set.log.commit_drafts"
DVU = "rebaser.change_set.serial_dvu"
LEASE = "rebaser.change_set.lease"
SERVER = "rebaser.server"
CLIENT = "rebaser_client.client"
STATE = "rebaser_core.state.change_set"

BUGS = (
    # -- derived values --------------------------------------------------------------------------------------------
    bug("the update is not notified", "calm", 4, LIFECYCLE, "queued=more, owes=owes, active_at=now", "queued=more"),
    bug(
        "two updates at a time",
        "harsh",
        5,
        LIFECYCLE,
        "if state.owes and (state.dvu is Dvu.IDLE or (state.dvu is Dvu.WAITING and now >= state.retry_at)):",
        "if state.owes and (state.dvu is not Dvu.WAITING or now >= state.retry_at):",
    ),
    bug(
        "an update covers the log up to its end",
        "gentle",
        1,
        DVU,
        "covers = view.sequence if debt else None\n",
        "covers = None\n",
    ),
    bug("results for what was edited meanwhile", "gentle", 4, DVU, "delta=valid,", "delta=computed,"),
    bug(
        "an update clears roots that came after it was planned",
        "gentle",
        4,
        STATE,
        "for id_, touched in self.roots.items() if touched > commit.covers}",
        "for id_, touched in self.roots.items() if False}",
    ),
    bug(
        "a rebase that wakes something covers the log",
        "gentle",
        1,
        DRAFTS,
        "covers = state.covers if owes else None\n",
        "covers = state.covers if False else None\n",
    ),
    bug(
        "edits that wake nothing pay what is owed",
        "gentle",
        1,
        DRAFTS,
        "owes = commits.state.owes or commits.state.wakes(decided.delta)",
        "owes = commits.state.wakes(decided.delta)",
    ),
    bug("an update that failed is not tried again", "gentle", 22, LIFECYCLE, "return self.retry_at\n", "return None\n"),
    # -- tasks -----------------------------------------------------------------------------------------------------
    bug(
        "no recheck",
        "gentle",
        65,
        OWNER,
        "                left = await recheck(self._context, self.commits, self._processor, self._puller)\n",
        "                left = False\n",
    ),
    bug(
        "the recheck comes before the ack",
        "gentle",
        65,
        LIFECYCLE,
        "return replace(state, phase=Phase.RECHECKING), (Command.RECHECK,)",
        "return replace(state, phase=Phase.DONE), ()",
    ),
    bug(
        "the recheck does not wait until the task is gone",
        "gentle",
        40,
        LEASE,
        "if stored is None or stored.sequence != self.task.sequence:",
        "if True:",
    ),
    bug(
        "the task is acked when it comes",
        "calm",
        4,
        OWNER,
        """                loaded = await open_change_set(context, self.key, lambda: context.round.arrived(self))
""",
        """                await self.lease.release()
                loaded = await open_change_set(context, self.key, lambda: context.round.arrived(self))
""",
    ),
    bug(
        "no progress is told",
        "calm",
        4,
        "rebaser.keepalive",
        "        await js.progress_all([owner.lease.task.message for owner in part if _holds_task(owner)])\n",
        "",
    ),
    bug(
        "tasks have a message id",
        "gentle",
        2,
        "rebaser_client.requests.task_publisher",
        'await js.publish(subjects.task(key), b"")',
        'await js.publish(subjects.task(key), b"", {"Nats-Msg-Id": str(key)})',
    ),
    bug(
        "the client publishes the task before the request",
        "gentle",
        3,
        CLIENT,
        """                await self._sender.store(request, deadline)
            except""",
        """                await self._task_publisher.publish(key)
                await self._sender.store(request, deadline)
            except""",
    ),
    bug(
        "the client sends again under a new id",
        "harsh",
        9,
        "rebaser_client.requests.sender",
        """            except TransientError:
                maybe_stored = True
""",
        """            except TransientError:
                from dataclasses import replace
                from rebaser_core.messages import decode
                sent = decode(request.headers, request.payload, self._limits, expect=EnqueueUpdatesRequest)
                _, request.payload = encode(replace(sent, id=sent.id + "x"))
                request.headers[MESSAGE_ID] += "x"
""",
    ),
)
