"""The life of an owned change set: what it does next, after everything that can happen to it."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebaser.change_set.lifecycle import (
    START,
    Arrived,
    Cancelled,
    Decided,
    Do,
    Dvu,
    DvuEnded,
    DvuFailed,
    Effect,
    Event,
    Failed,
    JobEnded,
    JobStarted,
    Life,
    Loaded,
    Looked,
    Nak,
    Pace,
    Phase,
    Reason,
    Released,
    Stop,
    Tick,
    step,
)

PACE = Pace(quiescent_period=10, dvu_retry=1, dvu_retry_max=4)


def run(*events: Event | tuple[float, Event], life: Life | None = None) -> tuple[Life, list[tuple[Effect, ...]]]:
    """Drive a life through events, each at its time (0 if none is given)."""
    life = life or Life()
    out = []
    for item in events:
        at, event = item if isinstance(item, tuple) else (0.0, item)
        life, effects = step(life, event, at, PACE)
        out.append(effects)
    return life, out


def active(owes: bool = False) -> Life:
    return run(Loaded(owes))[0]


def test_it_begins_by_loading() -> None:
    assert START == (Do.LOAD,)
    assert Life().phase is Phase.LOADING


def test_a_loaded_owner_waits_for_requests() -> None:
    life, effects = run(Loaded(owes=False))
    assert (life.phase, effects) == (Phase.ACTIVE, [(Do.AWAIT,)])


def test_a_loaded_owner_with_debt_runs_a_dvu_at_once() -> None:
    life, effects = run(Loaded(owes=True))
    assert effects == [(Do.AWAIT, Do.RUN_DVU)]
    assert life.dvu is Dvu.RUNNING


def test_a_dvu_that_is_put_off_waits_and_requests_do_not() -> None:
    life, effects = run(Loaded(owes=True, dvu_delay=20), Arrived(), Decided(owes=True, more=False), (19.9, Tick()))
    assert effects == [(Do.AWAIT,), (Do.DECIDE,), (Do.AWAIT,), ()]
    assert (life.wake_at(PACE), life.holds_slot) == (20, False)
    assert run((20, Tick()), life=life)[1] == [(Do.RUN_DVU,)]
    assert run(Stop(Reason.YIELD), life=life)[1] == [(Do.STOP_CONSUMING, Do.ACK)]


def test_what_arrives_is_decided_and_then_more_is_awaited() -> None:
    _, effects = run(Arrived(), Decided(owes=False, more=False), life=active())
    assert effects == [(Do.DECIDE,), (Do.AWAIT,)]


def test_what_is_queued_meanwhile_is_decided_next_without_waiting() -> None:
    _, effects = run(Arrived(), Decided(owes=False, more=True), life=active())
    assert effects == [(Do.DECIDE,), (Do.DECIDE,)]


def test_requests_are_decided_while_a_dvu_runs_and_one_more_dvu_follows() -> None:
    life, effects = run(Arrived(), Decided(owes=True, more=False), DvuEnded(owes=True), life=active(owes=True))
    assert effects == [(Do.DECIDE,), (Do.AWAIT,), (Do.RUN_DVU,)]
    life, effects = run(DvuEnded(owes=False), life=life)
    assert effects == [()]
    assert life.dvu is Dvu.IDLE


def test_a_failed_dvu_is_tried_again_later_and_later() -> None:
    life = active(owes=True)
    waits = []
    now = 0.0
    for _ in range(4):
        life, _ = run((now, DvuFailed()), life=life)
        at = life.wake_at(PACE)
        assert at is not None
        waits.append(at - now)
        assert run((at - 0.01, Tick()), life=life)[1] == [()]
        life, effects = run((at, Tick()), life=life)
        assert effects == [(Do.RUN_DVU,)]
        now = at
    assert waits == [1, 2, 4, 4]


def test_a_dvu_that_fails_after_one_that_did_not_is_tried_again_soon() -> None:
    life, _ = run(DvuFailed(), (1, Tick()), (1, DvuFailed()), (3, Tick()), life=active(owes=True))
    life, effects = run((3, DvuEnded(owes=True)), (3, DvuFailed()), life=life)
    assert effects == [(Do.RUN_DVU,), ()]
    assert life.wake_at(PACE) == 4


def test_a_quiet_owner_releases_and_looks_once_more() -> None:
    life = active()
    assert life.wake_at(PACE) == 10
    life, effects = run((9.9, Tick()), (10, Tick()), Released(), Looked(found=False), life=life)
    assert effects == [(), (Do.STOP_CONSUMING, Do.ACK), (Do.LOOK,), ()]
    assert life.phase is Phase.DONE


def test_what_the_last_look_finds_gets_a_task() -> None:
    _, effects = run((10, Tick()), Released(), Looked(found=True), life=active())
    assert effects[-1] == (Do.PUBLISH_TASK,)


@pytest.mark.parametrize(
    "held_by",
    [[Arrived()], [Arrived(), Decided(owes=True, more=False)], [JobStarted()]],
    ids=["deciding", "dvu", "job"],
)
def test_it_is_not_quiet_while_something_runs(held_by: list[Event]) -> None:
    life, _ = run(*held_by, life=active())
    assert run((1000, Tick()), life=life)[1] == [()]


def test_a_shutdown_settles_what_is_in_flight_and_naks_at_once() -> None:
    life, effects = run(Arrived(), Stop(Reason.SHUTDOWN), Decided(owes=True, more=True), life=active())
    assert effects == [(Do.DECIDE,), (Do.STOP_CONSUMING, Do.CANCEL_WORK), (Nak(0),)]
    assert life.phase is Phase.DONE


def test_a_shutdown_waits_for_the_cancelled_dvu() -> None:
    _, effects = run(Stop(Reason.SHUTDOWN), DvuFailed(), life=active(owes=True))
    assert effects == [(Do.STOP_CONSUMING, Do.CANCEL_WORK), (Nak(0),)]


@pytest.mark.parametrize(
    ("reason", "first", "end"),
    [
        (Reason.SHUTDOWN, (Do.STOP_CONSUMING, Do.CANCEL_WORK), (Nak(0),)),
        (Reason.YIELD, (Do.STOP_CONSUMING,), (Do.ACK,)),
        (Reason.FENCED, (Do.STOP_CONSUMING, Do.CANCEL_WORK), (Do.PUBLISH_TASK,)),
    ],
)
def test_an_end_waits_for_what_follows_a_commit(
    reason: Reason, first: tuple[Effect, ...], end: tuple[Effect, ...]
) -> None:
    """A dead letter that is written, a checkpoint that is about to be named."""
    _, effects = run(JobStarted(), Stop(reason), JobEnded(), life=active())
    assert effects == [(), first, end]


def test_a_shutdown_while_loading_waits_for_the_load_to_be_cancelled() -> None:
    _, effects = run(Stop(Reason.SHUTDOWN), Cancelled())
    assert effects == [(Do.STOP_CONSUMING, Do.CANCEL_WORK), (Nak(0),)]


def test_a_transient_failure_gives_the_task_back_with_its_delay() -> None:
    life, effects = run(Arrived(), Failed(Reason.TRANSIENT, 2.5), life=active())
    assert effects[-1] == (Do.STOP_CONSUMING, Do.CANCEL_WORK, Nak(2.5))
    assert life.phase is Phase.DONE


def test_a_fenced_owner_neither_acks_nor_naks_and_publishes_the_task() -> None:
    _, effects = run(Arrived(), Failed(Reason.FENCED), life=active())
    assert effects[-1] == (Do.STOP_CONSUMING, Do.CANCEL_WORK, Do.PUBLISH_TASK)


def test_a_fenced_dvu_stops_the_owner_only_after_its_commit_in_flight_is_settled() -> None:
    life, effects = run(Arrived(), DvuFailed(fenced=True), Failed(Reason.FENCED), life=active(owes=True))
    assert effects == [(Do.DECIDE,), (Do.STOP_CONSUMING, Do.CANCEL_WORK), (Do.CANCEL_WORK, Do.PUBLISH_TASK)]
    assert life.phase is Phase.DONE


def test_an_owner_that_yields_lets_its_dvu_finish_and_then_looks() -> None:
    _, effects = run(Stop(Reason.YIELD), DvuEnded(owes=False), Released(), Looked(found=True), life=active(owes=True))
    assert effects == [(Do.STOP_CONSUMING,), (Do.ACK,), (Do.LOOK,), (Do.PUBLISH_TASK,)]


def held(patience: float) -> Failed:
    return Failed(Reason.HELD, 2.5, patience)


def test_a_held_request_gives_the_task_back_with_its_delay() -> None:
    life, effects = run(Arrived(), held(0), life=active())
    assert effects[-1] == (Do.STOP_CONSUMING, Nak(2.5))
    assert life.phase is Phase.DONE


def test_a_held_request_lets_the_dvu_finish_first() -> None:
    life, effects = run(Arrived(), held(10), (9.9, Tick()), life=active(owes=True))
    assert effects == [(Do.DECIDE,), (Do.STOP_CONSUMING,), ()]
    assert life.wake_at(PACE) == 10
    assert run((9.9, DvuEnded(owes=True)), life=life)[1] == [(Nak(2.5),)]
    assert run((10, DvuEnded(owes=False)), life=life)[1][0][-1] == Nak(2.5)


def test_a_held_request_does_not_let_the_dvu_run_for_ever() -> None:
    life, effects = run(Arrived(), held(10), (10.0, Tick()), (10.1, Tick()), (10.2, DvuFailed()), life=active(True))
    assert effects[2:] == [(Do.CANCEL_WORK,), (), (Nak(2.5),)]
    assert life.phase is Phase.DONE


def test_a_shutdown_cuts_short_what_a_held_request_waits_for() -> None:
    _, effects = run(Arrived(), held(10), Stop(Reason.SHUTDOWN), DvuFailed(), life=active(owes=True))
    assert effects[2:] == [(Do.CANCEL_WORK,), (Nak(0),)]


def test_a_shutdown_overrides_a_yield_and_fencing_overrides_both() -> None:
    _, effects = run(
        Stop(Reason.YIELD), Stop(Reason.SHUTDOWN), Stop(Reason.FENCED), Stop(Reason.YIELD), DvuFailed(),
        life=active(owes=True),
    )  # fmt: skip
    assert effects[-1] == (Do.PUBLISH_TASK,)


def test_waiting_for_a_dvu_holds_the_task_but_no_slot() -> None:
    life = active(owes=True)
    assert not life.holds_slot
    life, _ = run(Arrived(), life=life)
    assert life.holds_slot
    assert active().holds_slot


EVENTS: list[Event] = [
    Arrived(), DvuEnded(False), DvuEnded(True), DvuFailed(), DvuFailed(fenced=True), JobStarted(), JobEnded(),
    Decided(False, False), Decided(True, False), Decided(False, True), Decided(True, True), Tick(), Cancelled(),
    Failed(Reason.TRANSIENT, 1), Failed(Reason.FENCED), Failed(Reason.HELD, 1, 5),
    Stop(Reason.SHUTDOWN), Stop(Reason.YIELD), Stop(Reason.FENCED),
    Loaded(True), Loaded(False), Released(), Looked(True), Looked(False),
]  # fmt: skip


class Shell:
    """Answers effects as the real shell would, so that only possible histories are tried."""

    def __init__(self) -> None:
        self.running: list[Do] = []
        self.all: list[Effect] = []

    def take(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            self.all.append(effect)
            if isinstance(effect, Do) and effect in ANSWERS:
                assert effect not in self.running, f"{effect} while it runs"
                self.running.append(effect)

    def possible(self) -> list[tuple[Do | None, Event]]:
        own = [(effect, event) for effect in self.running for event in ANSWERS[effect]]
        return [
            *own,
            (None, Tick()),
            *((None, Stop(reason)) for reason in (*Reason,) if reason not in (Reason.TRANSIENT, Reason.HELD)),
        ]


ANSWERS: dict[Do, list[Event]] = {
    Do.LOAD: [Loaded(True), Loaded(False), Failed(Reason.TRANSIENT, 1), Cancelled()],
    Do.AWAIT: [Arrived()],
    Do.DECIDE: [e for e in EVENTS if isinstance(e, (Decided, Failed, Cancelled))],
    Do.RUN_DVU: [DvuEnded(True), DvuEnded(False), DvuFailed(), DvuFailed(fenced=True)],
    Do.ACK: [Released()],
    Do.LOOK: [Looked(True), Looked(False)],
}


@given(st.data())
def test_every_possible_history_ends_the_task_exactly_once(data: st.DataObject) -> None:
    """Whatever happens in whatever order: nothing runs twice, nothing is given back while something of ours runs."""
    life, shell, now = Life(), Shell(), 0.0
    shell.take(START)
    for _ in range(60):
        effect, event = data.draw(st.sampled_from(shell.possible()))
        if effect is not None:
            shell.running.remove(effect)
        now += data.draw(st.sampled_from([0.0, 0.5, 11.0]))
        life, effects = step(life, event, now, PACE)
        if any(isinstance(one, Nak) or one in (Do.ACK, Do.PUBLISH_TASK) for one in effects):
            assert not {Do.DECIDE, Do.RUN_DVU, Do.LOAD} & set(shell.running)
        if Do.STOP_CONSUMING in effects and Do.AWAIT in shell.running:
            shell.running.remove(Do.AWAIT)
        shell.take(effects)
        if life.phase is Phase.DONE:
            break
    else:
        return
    naks = [one for one in shell.all if isinstance(one, Nak)]
    assert len(naks) + shell.all.count(Do.ACK) + (life.stopping is Reason.FENCED and Do.ACK not in shell.all) == 1
    assert shell.all.count(Do.PUBLISH_TASK) <= 1
    if Do.ACK in shell.all:
        assert shell.all.index(Do.LOOK) > shell.all.index(Do.ACK)


@given(st.lists(st.sampled_from(EVENTS), max_size=40))
def test_even_impossible_histories_never_raise(events: list[Event]) -> None:
    life = Life()
    for now, event in enumerate(events):
        life, _ = step(life, event, float(now), PACE)
