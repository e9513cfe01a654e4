"""Tests when, and how often, a JetStream that does not answer is reported."""

from rebaser_client.nats.api_outage import MIN_UNANSWERED, REPEAT_AFTER, ApiOutage
from tests.conftest import Events


def test_it_takes_several_calls_in_a_row_and_is_told_again_after_a_while(events: Events) -> None:
    outage = ApiOutage()
    for number in range(3 * MIN_UNANSWERED):  # never enough unanswered calls without an answer in between
        if number % MIN_UNANSWERED == MIN_UNANSWERED - 1:
            outage.answered(float(number))
        else:
            outage.timed_out(float(number), 1.0)
    assert not events.named("jetstream_silent")
    for now in (100.0, 101.0, 102.0, 103.0, 102.0 + REPEAT_AFTER):
        outage.timed_out(now, 1.0)
    told = events.named("jetstream_silent")
    assert [(one["calls"], one["seconds"]) for one in told] == [
        (MIN_UNANSWERED, 3.0),
        (MIN_UNANSWERED + 2, 3.0 + REPEAT_AFTER),
    ]
    outage.answered(200.0)
    assert len(events.named("jetstream_answers")) == 1
    outage.answered(201.0)
    assert len(events.named("jetstream_answers")) == 1
