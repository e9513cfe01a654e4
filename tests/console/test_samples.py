"""The samples behind the charts of the overview."""

from rebaser.console.live.samples import RECENT, STEPS, FleetSample, Samples, merged


def sample(at: float, requests: int = 0, rate: float = 0.0) -> FleetSample:
    return FleetSample(at, rate, rate, requests, 0, 0)


def kept(*samples: FleetSample) -> Samples:
    found = Samples()
    for one in samples:
        found.add(one)
    return found


def test_the_last_minutes_in_small_and_in_large_steps() -> None:
    found = kept(*(sample(float(at), at) for at in range(0, 4000, 2)))
    small, large = found.of("5", 3998.0), found.of("30", 3998.0)
    assert [one.at for one in small] == [float(at) for at in range(3700, 4000, 2)]
    assert (large[0].at, large[-1].at, len(large)) == (2208.0, 3998.0, 180)
    assert [one.requests for one in large[:2]] == [2208, 2218], "the highest of each step"


def test_the_present_step_is_there_at_once() -> None:
    found = kept(sample(101.0, 3), sample(103.0, 1))
    assert [(one.at, one.requests) for one in found.of("30", 103.0)] == [(103.0, 3)]
    assert Samples().of("30", 1.0) == Samples().of("5", 1.0) == []


def test_rates_are_averages_and_no_peak_is_lost() -> None:
    one = merged([sample(1.0, 7, 2.0), sample(2.0, 3, 4.0)])
    assert (one.at, one.requests_per_second, one.commits_per_second, one.requests) == (2.0, 3.0, 3.0, 7)


def test_what_is_too_old_is_gone_also_after_a_pause() -> None:
    found = kept(sample(10.0), sample(1000.0))
    assert [one.at for one in found.of("5", 1000.0)] == [1000.0]
    assert [one.at for one in found.of("30", 1000.0)] == [10.0, 1000.0]
    assert [one.at for one in found.of("30", 2000.0)] == [1000.0]


def test_a_clock_that_is_set_back_begins_anew() -> None:
    found = kept(sample(5000.0), sample(100.0))
    assert [one.at for one in found.of("5", 100.0)] == [one.at for one in found.of("30", 100.0)] == [100.0]


def test_memory_is_bounded() -> None:
    found = kept(*(sample(float(at)) for at in range(20_000)))
    assert (len(found._recent), len(found._steps), len(found._step)) == (RECENT, STEPS, 10)


def test_the_longest_wait_of_a_step_is_kept() -> None:
    looks = [FleetSample(at, 0.0, 0.0, 0, 0, 0, wait) for at, wait in ((1.0, 2.5), (2.0, 9.0), (3.0, 0.0))]
    assert merged(looks).oldest_request == 9.0
