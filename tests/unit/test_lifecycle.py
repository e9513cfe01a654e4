"""The state machine of an owner: what it does next after each possible event."""

from collections.abc import Iterable
from itertools import product, starmap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebaser.change_set.lifecycle import (
    INITIAL_EFFECTS,
    Arrived,
    Cancelled,
    Command,
    Decided,
    Dvu,
    DvuEnded,
    DvuFailed,
    Effect,
    Event,
    Failed,
    JobEnded,
    JobStarted,
    Loaded,
    Nak,
    OwnerState,
    Phase,
    Reason,
    Rechecked,
    Released,
    Stop,
    Tick,
    Timing,
    step,
    step_by_rules,
)

TIMING = Timing(quiescent_period=10, dvu_retry=1, dvu_retry_max=4)


def run(
    *events: Event | tuple[float, Event], state: OwnerState | None = None
) -> tuple[OwnerState, list[tuple[Effect, ...]]]:
    """Drive an owner through events, each at its time (0 if none is given)."""
    state = state or OwnerState()
    out = []
    for item in events:
        at, event = item if isinstance(item, tuple) else (0.0, item)
        state, effects = step(state, event, at, TIMING)
        out.append(effects)
    return state, out


def active(owes: bool = False) -> OwnerState:
    return run(Loaded(owes))[0]


def test_it_begins_by_loading() -> None:
    assert INITIAL_EFFECTS == (Command.LOAD,)
    assert OwnerState().phase is Phase.LOADING


def test_a_loaded_owner_waits_for_requests() -> None:
    state, effects = run(Loaded(owes=False))
    assert (state.phase, effects) == (Phase.ACTIVE, [(Command.AWAIT,)])


def test_a_loaded_owner_with_debt_runs_a_dvu_at_once() -> None:
    state, effects = run(Loaded(owes=True))
    assert effects == [(Command.AWAIT, Command.RUN_DVU)]
    assert state.dvu is Dvu.RUNNING


def test_a_dvu_that_is_put_off_waits_and_requests_do_not() -> None:
    decided = Decided(owes=True, more=False)
    state, effects = run((50, Loaded(owes=True, dvu_delay=20)), (51, Arrived()), (52, decided), (69.9, Tick()))
    assert effects == [(Command.AWAIT,), (Command.DECIDE,), (Command.AWAIT,), ()]
    assert (state.next_tick(TIMING), state.holds_slot) == (70, False)
    assert run((70, Tick()), state=state)[1] == [(Command.RUN_DVU,)]
    assert run(Stop(Reason.YIELD), state=state)[1] == [(Command.STOP_CONSUMING, Command.ACK)]


def test_what_arrives_is_decided_and_then_more_is_awaited() -> None:
    _, effects = run(Arrived(), Decided(owes=False, more=False), state=active())
    assert effects == [(Command.DECIDE,), (Command.AWAIT,)]


def test_what_is_queued_meanwhile_is_decided_next_without_waiting() -> None:
    _, effects = run(Arrived(), Decided(owes=False, more=True), state=active())
    assert effects == [(Command.DECIDE,), (Command.DECIDE,)]


def test_requests_are_decided_while_a_dvu_runs_and_one_more_dvu_follows() -> None:
    state, effects = run(Arrived(), Decided(owes=True, more=False), DvuEnded(owes=True), state=active(owes=True))
    assert effects == [(Command.DECIDE,), (Command.AWAIT,), (Command.RUN_DVU,)]
    state, effects = run(DvuEnded(owes=False), state=state)
    assert effects == [()]
    assert state.dvu is Dvu.IDLE


def test_a_failed_dvu_is_tried_again_later_and_later() -> None:
    state = active(owes=True)
    waits = []
    now = 0.0
    for _ in range(4):
        state, _ = run((now, DvuFailed()), state=state)
        at = state.next_tick(TIMING)
        assert at is not None
        waits.append(at - now)
        assert run((at - 0.01, Tick()), state=state)[1] == [()]
        state, effects = run((at, Tick()), state=state)
        assert effects == [(Command.RUN_DVU,)]
        now = at
    assert waits == [1, 2, 4, 4]


def test_a_dvu_that_fails_after_one_that_did_not_is_tried_again_soon() -> None:
    state, _ = run(DvuFailed(), (1, Tick()), (1, DvuFailed()), (3, Tick()), state=active(owes=True))
    state, effects = run((3, DvuEnded(owes=True)), (3, DvuFailed()), state=state)
    assert effects == [(Command.RUN_DVU,), ()]
    assert state.next_tick(TIMING) == 4


def test_a_quiet_owner_releases_and_looks_once_more() -> None:
    state = active()
    assert state.next_tick(TIMING) == 10
    state, effects = run((9.9, Tick()), (10, Tick()), Released(), Rechecked(work_left=False), state=state)
    assert effects == [(), (Command.STOP_CONSUMING, Command.ACK), (Command.RECHECK,), ()]
    assert state.phase is Phase.DONE


@pytest.mark.parametrize("busy_with", [[Arrived(), Decided(owes=False, more=False)], [DvuEnded(owes=False)]])
def test_it_is_quiet_for_a_period_after_its_last_work(busy_with: list[Event]) -> None:
    """Otherwise, the log would be loaded for each edit of a user who edits every few seconds."""
    started = active(owes=isinstance(busy_with[0], DvuEnded))
    state, _ = run(*[(15.0, event) for event in busy_with], state=started)
    assert state.next_tick(TIMING) == 25.0
    assert run((24.9, Tick()), state=state)[0].phase is Phase.ACTIVE
    assert run((25.0, Tick()), state=state)[0].phase is Phase.RELEASING


def test_a_job_that_runs_keeps_no_timer_going() -> None:
    """The end of a job is an event. A timer that is due already would fire again and again."""
    assert run(JobStarted(), state=active())[0].next_tick(TIMING) is None


def test_what_the_recheck_finds_gets_a_task() -> None:
    _, effects = run((10, Tick()), Released(), Rechecked(work_left=True), state=active())
    assert effects[-1] == (Command.PUBLISH_TASK,)


@pytest.mark.parametrize(
    "held_by",
    [[Arrived()], [Arrived(), Decided(owes=True, more=False)], [JobStarted()]],
    ids=["deciding", "dvu", "job"],
)
def test_it_is_not_quiet_while_something_runs(held_by: list[Event]) -> None:
    state, _ = run(*held_by, state=active())
    assert run((1000, Tick()), state=state)[1] == [()]


def test_a_shutdown_settles_what_is_in_flight_and_naks_at_once() -> None:
    state, effects = run(Arrived(), Stop(Reason.SHUTDOWN), Decided(owes=True, more=True), state=active())
    assert effects == [(Command.DECIDE,), (Command.STOP_CONSUMING, Command.CANCEL_WORK), (Nak(0),)]
    assert state.phase is Phase.DONE


def test_a_shutdown_waits_for_the_cancelled_dvu() -> None:
    _, effects = run(Stop(Reason.SHUTDOWN), DvuFailed(), state=active(owes=True))
    assert effects == [(Command.STOP_CONSUMING, Command.CANCEL_WORK), (Nak(0),)]


@pytest.mark.parametrize(
    ("reason", "first", "end"),
    [
        (Reason.SHUTDOWN, (Command.STOP_CONSUMING, Command.CANCEL_WORK), (Nak(0),)),
        (Reason.YIELD, (Command.STOP_CONSUMING,), (Command.ACK,)),
        (Reason.FENCED, (Command.STOP_CONSUMING, Command.CANCEL_WORK), (Command.PUBLISH_TASK,)),
        (Reason.TASK_LOST, (Command.STOP_CONSUMING, Command.CANCEL_WORK), (Command.PUBLISH_TASK,)),
    ],
)
def test_an_end_waits_for_what_follows_a_commit(
    reason: Reason, first: tuple[Effect, ...], end: tuple[Effect, ...]
) -> None:
    """A dead letter may be in the middle of a write, or a checkpoint may be about to be named."""
    _, effects = run(JobStarted(), Stop(reason), JobEnded(), state=active())
    assert effects == [(), first, end]


def test_a_shutdown_while_loading_waits_for_the_load_to_be_cancelled() -> None:
    _, effects = run(Stop(Reason.SHUTDOWN), Cancelled())
    assert effects == [(Command.STOP_CONSUMING, Command.CANCEL_WORK), (Nak(0),)]


def test_a_transient_failure_gives_the_task_back_with_its_delay() -> None:
    state, effects = run(Arrived(), Failed(Reason.TRANSIENT, 2.5), state=active())
    assert effects[-1] == (Command.STOP_CONSUMING, Command.CANCEL_WORK, Nak(2.5))
    assert state.phase is Phase.DONE


def test_a_fenced_owner_neither_acks_nor_naks_and_publishes_the_task() -> None:
    _, effects = run(Arrived(), Failed(Reason.FENCED), state=active())
    assert effects[-1] == (Command.STOP_CONSUMING, Command.CANCEL_WORK, Command.PUBLISH_TASK)


def test_a_fenced_dvu_stops_the_owner_only_after_its_commit_in_flight_is_settled() -> None:
    state, effects = run(Arrived(), DvuFailed(fenced=True), Failed(Reason.FENCED), state=active(owes=True))
    assert effects == [
        (Command.DECIDE,),
        (Command.STOP_CONSUMING, Command.CANCEL_WORK),
        (Command.CANCEL_WORK, Command.PUBLISH_TASK),
    ]
    assert state.phase is Phase.DONE


def test_an_owner_that_yields_lets_its_dvu_finish_and_then_looks() -> None:
    _, effects = run(
        Stop(Reason.YIELD), DvuEnded(owes=False), Released(), Rechecked(work_left=True), state=active(owes=True)
    )
    assert effects == [(Command.STOP_CONSUMING,), (Command.ACK,), (Command.RECHECK,), (Command.PUBLISH_TASK,)]


def blocked(grace: float) -> Failed:
    return Failed(Reason.QUEUE_BLOCKED, 2.5, grace)


def test_a_held_request_gives_the_task_back_with_its_delay() -> None:
    state, effects = run(Arrived(), blocked(0), state=active())
    assert effects[-1] == (Command.STOP_CONSUMING, Nak(2.5))
    assert state.phase is Phase.DONE


def test_a_held_request_lets_the_dvu_finish_first() -> None:
    state, effects = run(Arrived(), blocked(10), (9.9, Tick()), state=active(owes=True))
    assert effects == [(Command.DECIDE,), (Command.STOP_CONSUMING,), ()]
    assert state.next_tick(TIMING) == 10
    assert run((9.9, DvuEnded(owes=True)), state=state)[1] == [(Nak(2.5),)]
    assert run((10, DvuEnded(owes=False)), state=state)[1][0][-1] == Nak(2.5)


def test_a_held_request_does_not_let_the_dvu_run_for_ever() -> None:
    state, effects = run(
        Arrived(), blocked(10), (10.0, Tick()), (10.1, Tick()), (10.2, DvuFailed()), state=active(True)
    )
    assert effects[2:] == [(Command.CANCEL_WORK,), (), (Nak(2.5),)]
    assert state.phase is Phase.DONE


def test_a_shutdown_cuts_short_what_a_held_request_waits_for() -> None:
    _, effects = run(Arrived(), blocked(10), Stop(Reason.SHUTDOWN), DvuFailed(), state=active(owes=True))
    assert effects[2:] == [(Command.CANCEL_WORK,), (Nak(0),)]


def test_a_shutdown_overrides_a_yield_and_fencing_overrides_both() -> None:
    _, effects = run(
        Stop(Reason.YIELD), Stop(Reason.SHUTDOWN), Stop(Reason.FENCED), Stop(Reason.YIELD), DvuFailed(),
        state=active(owes=True),
    )  # fmt: skip
    assert effects[-1] == (Command.PUBLISH_TASK,)


def test_waiting_for_a_dvu_holds_the_task_but_no_slot() -> None:
    state = active(owes=True)
    assert not state.holds_slot
    state, _ = run(Arrived(), state=state)
    assert state.holds_slot
    assert active().holds_slot


@pytest.mark.parametrize("more", [True, False])
def test_an_owner_that_yields_waits_for_its_dvu_without_a_slot(more: bool) -> None:
    """Later requests are left to the next owner. If this owner kept its slot, others would wait for the DVU, too."""
    state, effects = run(Arrived(), Stop(Reason.YIELD), state=active(owes=True))
    assert (state.phase, state.holds_slot) == (Phase.SETTLING, True)
    state, effects = run(Decided(owes=True, more=more), state=state)
    assert (state.phase, state.dvu, state.holds_slot, effects) == (Phase.SETTLING, Dvu.RUNNING, False, [()])


EVENTS: list[Event] = [
    Arrived(), DvuEnded(False), DvuEnded(True), DvuFailed(), DvuFailed(fenced=True), JobStarted(), JobEnded(),
    Decided(False, False), Decided(True, False), Decided(False, True), Decided(True, True), Tick(), Cancelled(),
    Failed(Reason.TRANSIENT, 1), Failed(Reason.FENCED), Failed(Reason.QUEUE_BLOCKED, 1, 5),
    Stop(Reason.SHUTDOWN), Stop(Reason.YIELD), Stop(Reason.FENCED), Stop(Reason.TASK_LOST),
    Loaded(True), Loaded(False), Released(), Rechecked(True), Rechecked(False),
]  # fmt: skip


class Shell:
    """Answers effects as the real shell does, so that only possible histories are tried."""

    def __init__(self) -> None:
        self.running: list[Command] = []
        self.all: list[Effect] = []

    def take(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            self.all.append(effect)
            if isinstance(effect, Command) and effect in ANSWERS:
                assert effect not in self.running, f"{effect} while it runs"
                self.running.append(effect)

    def possible(self) -> list[tuple[Command | None, Event]]:
        own = [(effect, event) for effect in self.running for event in ANSWERS[effect]]
        return [
            *own,
            (None, Tick()),
            *((None, Stop(reason)) for reason in (*Reason,) if reason not in (Reason.TRANSIENT, Reason.QUEUE_BLOCKED)),
        ]


ANSWERS: dict[Command, list[Event]] = {
    Command.LOAD: [Loaded(True), Loaded(False), Failed(Reason.TRANSIENT, 1), Cancelled()],
    Command.AWAIT: [Arrived()],
    Command.DECIDE: [e for e in EVENTS if isinstance(e, (Decided, Failed, Cancelled))],
    Command.RUN_DVU: [DvuEnded(True), DvuEnded(False), DvuFailed(), DvuFailed(fenced=True)],
    Command.ACK: [Released()],
    Command.RECHECK: [Rechecked(True), Rechecked(False)],
}


@given(st.data())
def test_every_possible_history_ends_the_task_exactly_once(data: st.DataObject) -> None:
    """In any order of events, nothing runs twice, and the task is not given back while a job runs."""
    state, shell, now = OwnerState(), Shell(), 0.0
    shell.take(INITIAL_EFFECTS)
    for _ in range(60):
        effect, event = data.draw(st.sampled_from(shell.possible()))
        if effect is not None:
            shell.running.remove(effect)
        now += data.draw(st.sampled_from([0.0, 0.5, 11.0]))
        state, effects = step(state, event, now, TIMING)
        if any(isinstance(one, Nak) or one in (Command.ACK, Command.PUBLISH_TASK) for one in effects):
            assert not {Command.DECIDE, Command.RUN_DVU, Command.LOAD} & set(shell.running)
        if Command.STOP_CONSUMING in effects and Command.AWAIT in shell.running:
            shell.running.remove(Command.AWAIT)
        shell.take(effects)
        if state.phase is Phase.DONE:
            break
    else:
        return
    naks = [one for one in shell.all if isinstance(one, Nak)]
    assert (
        len(naks)
        + shell.all.count(Command.ACK)
        + (state.stopping in (Reason.FENCED, Reason.TASK_LOST) and Command.ACK not in shell.all)
        == 1
    )
    assert shell.all.count(Command.PUBLISH_TASK) <= 1
    if Command.ACK in shell.all:
        assert shell.all.index(Command.RECHECK) > shell.all.index(Command.ACK)


@pytest.mark.parametrize("event", [Arrived(), *starmap(Decided, product((False, True), repeat=2))], ids=str)
def test_the_usual_step_gives_the_same_as_all_rules(event: Event) -> None:
    no, flags = Timing(quiescent_period=0), (False, True)
    for fields in product(Phase, flags, flags, flags, Dvu, [0], [0.0, 12.0], [0, 1], [0.0, 9.0]):
        for now, timing in product((0.0, 10.0, 20.0), (TIMING, no)):
            state = OwnerState(*fields)
            assert step(state, event, now, timing) == step_by_rules(state, event, now, timing)


@given(st.lists(st.sampled_from(EVENTS), max_size=40))
def test_even_impossible_histories_never_raise(events: list[Event]) -> None:
    state = OwnerState()
    for now, event in enumerate(events):
        state, _ = step(state, event, float(now), TIMING)
