"""The bookkeeping of pulls: credits are neither lost nor made up."""

from hypothesis import given
from hypothesis import strategies as st

from rebaser_client.jetstream.pull_state import PullState


def pulled(state: PullState, token: str) -> int:
    """Send what is wanted, as the shell does."""
    count = state.wanted()
    if count:
        state.sent(token, count)
    return count


def test_all_credits_are_pulled_for_at_once() -> None:
    state = PullState()
    state.grant(10)
    assert pulled(state, "1") == 10
    assert (state.free, state.outstanding, state.wanted()) == (0, 10, 0)


def test_one_credit_never_stalls() -> None:
    state = PullState()
    for turn in range(5):
        state.grant(1)
        assert pulled(state, str(turn)) == 1
        state.delivered()
    assert (state.free, state.outstanding) == (0, 0)


def test_credits_that_come_one_by_one_do_not_make_a_pull_each() -> None:
    state = PullState()
    state.grant(1000)
    pulled(state, "0")
    pulls = 0
    for turn in range(1, 1001):
        state.delivered()
        state.grant(1)
        pulls += bool(pulled(state, str(turn)))
    assert pulls <= 3
    assert state.free + state.outstanding == 1000


def test_a_pull_that_ends_gives_back_what_it_did_not_bring() -> None:
    state = PullState()
    state.grant(5)
    pulled(state, "1")
    state.delivered()
    state.delivered()
    assert state.ended("1", 3)
    assert (state.free, state.outstanding, state.wanted()) == (3, 0, 3)


def test_without_a_count_our_own_stands() -> None:
    state = PullState()
    state.grant(5)
    pulled(state, "1")
    state.delivered()
    assert state.ended("1", None)
    assert (state.free, state.outstanding) == (4, 0)


def test_a_message_we_counted_for_the_wrong_pull_is_moved() -> None:
    state = PullState()
    state.grant(2)
    pulled(state, "1")
    state.grant(4)
    pulled(state, "2")
    state.delivered()  # counted for the older, brought by the younger
    assert state.ended("1", 2)
    assert (state.free, state.outstanding) == (2, 3)
    assert state.ended("2", 3)
    assert (state.free, state.outstanding) == (5, 0)


def test_a_status_of_a_pull_that_is_over_means_nothing() -> None:
    state = PullState()
    state.grant(1)
    pulled(state, "1")
    state.lost()
    assert not state.ended("1", 1)
    assert (state.free, state.outstanding) == (1, 0)


def test_a_message_of_a_pull_given_up_is_paid_for_by_the_next_credit() -> None:
    state = PullState()
    state.grant(1)
    pulled(state, "1")
    state.lost()
    pulled(state, "2")
    state.delivered()
    state.delivered()
    assert (state.free, state.outstanding, state.wanted()) == (-1, 0, 0)
    state.grant(1)
    assert state.wanted() == 0
    state.grant(1)
    assert state.wanted() == 1


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("grant"), st.integers(1, 20)),
        st.tuples(st.just("pull"), st.just(0)),
        st.tuples(st.just("message"), st.integers(0, 9)),
        st.tuples(st.just("end"), st.integers(0, 9)),
        st.tuples(st.just("lost"), st.just(0)),
    ),
    max_size=60,
)


@given(STEPS, st.booleans())
def test_no_credit_is_lost_or_made_up(steps: list[tuple[str, int]], counted: bool) -> None:
    """Against a model of the server that serves its pulls in any order, and tells the truth when one ends."""
    state, server = PullState(), dict[str, int]()
    granted = delivered = pulls = 0
    for step, number in steps:
        tokens = list(server)
        if step == "grant":
            state.grant(number)
            granted += number
        elif step == "pull":
            pulls += 1
            if count := pulled(state, str(pulls)):
                server[str(pulls)] = count
        elif step == "lost":
            state.lost()
            server.clear()
        elif tokens:
            token = tokens[number % len(tokens)]
            if step == "message":
                state.delivered()
                delivered += 1
                server[token] -= 1
                if not server[token]:
                    del server[token]
            else:
                state.ended(token, server.pop(token) if counted else None)
        assert state.free + state.outstanding + delivered == granted
        assert state.outstanding >= 0
        if counted:
            assert state.outstanding == sum(server.values())


@given(st.integers(1, 50), STEPS)
def test_whoever_has_credit_has_a_pull_out_or_wants_one(first: int, steps: list[tuple[str, int]]) -> None:
    state = PullState()
    state.grant(first)
    for turn, (step, number) in enumerate(steps):
        if step == "grant":
            state.grant(number)
        elif step == "message" and state.outstanding:
            state.delivered()
        elif step == "end":
            state.ended(str(number), None)
        elif step == "lost":
            state.lost()
        pulled(state, str(turn))
        assert state.outstanding or state.free <= 0
