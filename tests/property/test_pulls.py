"""Whatever servers, connections and readers do, the pulls lose nothing, request nothing twice, and do not stall."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from rebaser_client.jetstream.pull.actions import Action, EndPulling, PullWarning, RenewInbox, ResumeAfter, SendPull
from rebaser_client.jetstream.pull.state import MAX_STEP, PullState
from rebaser_client.nats.errors import NotConnectedError

SIZE = 7  # bytes of each message, where bytes are counted
HEARTBEAT = 2.0  # seconds
KINDS = ["consume", "all", "none", "one", "bytes", "credits"]
GOES_ON = [
    *[("404", "No Messages"), ("408", "Request Timeout"), ("408", "Interest Expired"), ("409", "Batch Completed")],
    *[("409", "Message Size Exceeds MaxBytes"), ("423", "Nats-Wrong-Pin-Id"), ("423", "Nats-Pin-Id mismatch")],
    *[("400", "Bad Request - no"), ("409", "Exceeded MaxRequestBatch of 5"), ("409", "Exceeded MaxWaiting")],
    *[("409", "Leadership Change"), ("409", "Server Shutdown"), ("409", "?"), ("412", ""), ("503", ""), ("599", "")],
    ("100", "Idle Heartbeat"),
]
ENDS = [("409", "Consumer Deleted"), ("409", "Consumer is push based")]


def made(kind: str) -> PullState:
    limit = {"one": 1, "bytes": 20 * SIZE, "credits": 0}.get(kind, 20)
    threshold = {"credits": None, "all": limit, "none": 0}.get(kind, limit // 2)
    by_bytes = kind == "bytes"
    return PullState(limit=limit, threshold=threshold, by_bytes=by_bytes, heartbeat=HEARTBEAT, survives_delete=True)


class Model:
    """A server that serves its pulls in any order and reports their ends correctly, and a reader with a buffer."""

    def __init__(self, kind: str) -> None:
        self.state = state = made(kind)
        self.unit = SIZE if kind == "bytes" else 1
        self.limit = state.free
        self.server: dict[int, int] = {}  # by token: how many messages the pull may still deliver
        self.buffer = self.came = self.granted = 0
        self.now = 0.0
        self.connected = True
        self.too_large = False  # whether the server has reported a too large message since the last message
        self.act(state.start(0.0))
        if kind == "credits":
            self.granted = self.limit = 20
            self.act(state.grant(20))
            self.granted, self.limit = 0, 20

    def act(self, actions: Sequence[Action]) -> None:
        for action in actions:
            assert not isinstance(action, EndPulling)
            if isinstance(action, SendPull):
                assert self.connected
                self.server[action.token] = action.max_bytes or action.batch
            elif isinstance(action, ResumeAfter):
                self.act(self.state.resume())
            elif isinstance(action, RenewInbox):
                self.server.clear()
                self.act(self.state.renewed())

    def step(self, step: str, number: int) -> None:
        state, tokens = self.state, list(self.server)
        if step == "take":
            taken = min(number + 1, self.buffer)
            self.buffer -= taken
            self.granted += taken * self.unit
            self.act(state.grant(taken * self.unit))
        elif step == "cut":
            self.server.clear()
            self.connected = False
            self.act(state.disconnected())
        elif step == "back":
            self.server.clear()
            self.connected = True
            self.act(state.reconnected())
        elif step == "silent":
            for _ in range(30):
                self.now += 0.5
                self.act(state.tick(self.now))
        elif tokens:
            self.serve(step, tokens[number % len(tokens)])

    def serve(self, step: str, token: int) -> None:
        state, left = self.state, self.server[token]
        if step == "message" and left >= self.unit:
            self.too_large = False
            self.buffer += 1
            self.came += self.unit
            self.server[token] -= self.unit
            if not self.server[token]:
                del self.server[token]
            self.act(state.message(self.unit))
        elif step == "message":
            del self.server[token]
            self.too_large = True
            self.act(state.status(token, "409", "Message Size Exceeds MaxBytes", left))
        elif step == "ended":
            del self.server[token]
            self.act(state.status(token, "408", "Request Timeout", left))
        elif step in ("Leadership Change", "Consumer Deleted"):
            self.server.clear()
            self.act(state.status(token, "409", step, None))


EVENTS = ["take", "message", "message", "message", "ended", "cut", "back", "silent"]
STEPS = st.lists(
    st.tuples(st.sampled_from([*EVENTS, "Leadership Change", "Consumer Deleted"]), st.integers(0, 9)), max_size=80
)


@given(STEPS, st.sampled_from(KINDS))
def test_no_credit_is_lost_or_made_up(steps: list[tuple[str, int]], kind: str) -> None:
    model = Model(kind)
    state = model.state
    for step, number in steps:
        model.step(step, number)
        assert state.free + state.outstanding + model.came == model.limit + model.granted
        assert state.outstanding == sum(model.server.values())
        # The pending counts are never negative, and requested and waiting messages together never exceed the limit.
        assert min(state.free, state.outstanding) >= 0
        assert state.outstanding + model.buffer * model.unit <= model.limit
        # At the threshold, a pull is open unless there is no connection or the next message would not fit.
        assert state.free < (state.min_free or max(state.outstanding, 1)) or not model.connected or model.too_large
    model.step("back", 0)
    while model.buffer:
        model.step("take", 9)
    assert state.outstanding, "an empty buffer, and nothing asked for"
    assert state.outstanding == sum(model.server.values())


@given(STEPS, st.sampled_from(KINDS))
def test_heartbeats_that_are_missed_are_told_of_and_pulled_again_for(steps: list[tuple[str, int]], kind: str) -> None:
    model = Model(kind)
    state = model.state
    for step, number in steps:
        model.step(step, number)
    if not model.connected:
        model.step("back", 0)
    asked = state.outstanding
    actions: list[Action] = []
    for _ in range(int(2 * HEARTBEAT / MAX_STEP) + 1):
        model.now += MAX_STEP
        actions += state.tick(model.now)
    if asked:
        warned, renew = actions
        assert isinstance(warned, PullWarning)
        assert (warned.event, renew) == ("pull_heartbeats_missed", RenewInbox())
        (again,) = state.renewed()
        assert isinstance(again, SendPull)
        assert state.outstanding >= asked
    else:
        assert not actions, "nothing is asked for: nobody has to answer"


LIES = st.tuples(
    st.sampled_from(["message", "status", "take", "tick", "cut", "back", "pin", "failed", "renewed", "resume"]),
    st.integers(0, 3),
    st.integers(0, 30),
)


@given(st.lists(LIES, max_size=60), st.sampled_from(GOES_ON), st.booleans(), st.booleans())
def test_whatever_comes_in_whatever_order_the_counts_hold(
    steps: list[tuple[str, int, int]], told: tuple[str, str], counted: bool, by_bytes: bool
) -> None:
    """The server reports wrong counts, repeats itself and loses messages: still no count is negative, and nothing
    stalls."""
    state = PullState(limit=10, threshold=5, by_bytes=by_bytes, heartbeat=1.0)
    state.start(0.0)
    came = taken = 0
    for step, number, left in steps:
        token = state._floor + number  # about the oldest token that counts
        if step == "message":
            came += 1
            state.message()
        elif step == "status":
            state.status(token, *told, left if counted else None)
        elif step == "take" and taken < came:
            taken += 1
            state.grant(1)
        elif step == "tick":
            state.tick(state._now + 0.5)
        elif step == "cut":
            state.disconnected()
        elif step == "back":
            state.reconnected()
        elif step == "pin":
            state.pinned(str(number % 2))
        elif step == "failed":
            state.failed(token, NotConnectedError("broken"))
        elif step == "renewed":
            state.renewed()
        else:
            state.resume()
        assert not state.ended
        assert state.outstanding >= 0
        assert state.outstanding == sum(sent.remaining for sent in state._sent)
        assert all(sent.remaining > 0 for sent in state._sent)
        assert state.free + state.outstanding + came - taken == 10
    # After a long silence, with a connection and a reader that takes everything, pulls ask for the full limit.
    state.disconnected()
    state.resume()
    state.renewed()
    state.reconnected()
    for _ in range(came - taken):
        state.grant(1)
    assert state.outstanding + state.free == 10
    assert state.free < state.min_free


@given(st.lists(st.sampled_from([*GOES_ON, *ENDS]), max_size=20))
def test_it_ends_when_the_consumer_is_gone_or_pushes_and_never_else(told: list[tuple[str, str]]) -> None:
    state = PullState(limit=10, threshold=5, by_bytes=True)
    state.start(0.0)
    ended = False
    for status, text in told:
        actions = [*state.status(state._tokens, status, text, None), *state.resume()]
        if not ended and (status, text) in ENDS:
            ended = True
            assert [type(action) for action in actions] == [EndPulling]
        elif ended:
            assert not actions
        assert state.ended == ended
        assert ended or state.outstanding == 10
