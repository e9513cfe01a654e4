"""The index of the table of change sets is brought up to date, and is then the same as one that is made anew."""

import random
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from rebaser.console.api import change_sets
from rebaser.console.api.change_sets import ListIndex
from rebaser.console.live.hub import Seen
from rebaser_client.admin.fleet import ActiveChangeSet, FleetView
from rebaser_client.log.branches import BranchInfo

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


def seen(rows: dict[str, ActiveChangeSet], infos: dict[str, BranchInfo]) -> Seen:
    return Seen(FleetView(1.0, 2.0, [], [rows[name] for name in sorted(rows)], len(infos)), list(infos.values()), ())


@pytest.mark.parametrize("seed", range(20))
def test_it_is_the_same_as_one_that_is_made_anew(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_sets, "MANY", 0)  # however much differs, it is brought up to date
    rng, rows, infos = random.Random(seed), dict[str, ActiveChangeSet](), dict[str, BranchInfo]()
    index = ListIndex(seen(rows, infos))
    for sequence in range(60):
        for _ in range(rng.randint(0, 3)):
            name = f"cs-{rng.randrange(12)}"
            if rng.random() < 0.4:
                rows[name] = ActiveChangeSet("ws", name, pending=rng.randrange(2), debt=rng.random() < 0.5)
            elif rng.random() < 0.4:
                rows.pop(name, None)
            else:
                status = rng.choice(("open", "open", "applied", "deleted"))
                infos[name] = BranchInfo("ws", name, sequence, NOW, status, errors=rng.randrange(2))
        index, anew = ListIndex(seen(rows, infos), index), ListIndex(seen(rows, infos))
        assert (index.rows, index.counts) == (anew.rows, anew.counts)


def test_what_has_not_changed_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    infos = {name: BranchInfo("ws", name, 1, NOW) for name in map(str, range(100))}
    before = ListIndex(seen({}, infos))
    infos["7"] = replace(infos["7"], sequence=2)
    monkeypatch.setattr(change_sets, "listed", None)  # which makes all
    after = ListIndex(seen({}, infos), before)
    assert [one.searched for one, old in zip(after.rows, before.rows, strict=True) if one is not old] == ["ws/7"]


def test_an_installation_that_is_read_anew_is_indexed_anew() -> None:
    before = ListIndex(seen({}, {name: BranchInfo("ws", name, 1, NOW) for name in "abc"}))
    for names in ("ab", "abx", "bcxy", ""):
        found = ListIndex(seen({}, {name: BranchInfo("ws", name, 1, NOW) for name in names}), before)
        assert [one.change_set for one in found.rows] == sorted(names)
        assert found.counts["all"] == len(names)
