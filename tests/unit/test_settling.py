"""After an apply, the branch gets a request to replay the commit of the apply, however late the apply is repeated."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from rebaser.change_set import processor as processor_module
from rebaser.change_set.processor import Processor
from rebaser_core.branches.branch import Action, Apply, Rebase
from rebaser_core.commit import Decision, Outcome
from rebaser_core.decisions.queued_request import QueuedRequest
from rebaser_core.ids import ChangeSetKey, RequestId

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("action", "outcome", "position", "earlier", "asked"),
    [
        (Apply("fix"), Outcome.SUCCESS, 7, None, [("ws/fix", 7, 20)]),
        # A later commit would bring edits that were not requested.
        (Apply("fix"), Outcome.SUCCESS, 7, 12, [("ws/fix", 7, 12)]),
        (Apply("fix"), Outcome.CONFLICTS, 0, None, []),
        (Apply("fix"), Outcome.ERROR, 0, 12, []),
        (Rebase(), Outcome.SUCCESS, 7, None, []),
    ],
)
async def test_it_is_asked_for_the_commit_that_applied_it(
    monkeypatch: pytest.MonkeyPatch,
    action: Action,
    outcome: Outcome,
    position: int,
    earlier: int | None,
    asked: list[tuple[str, int, int]],
) -> None:
    found: list[tuple[str, int, int]] = []

    async def request_settling(_: object, branch: ChangeSetKey, applied: int, commit: int, __: object) -> None:
        found.append((f"{branch.workspace}/{branch.change_set}", applied, commit))

    monkeypatch.setattr(processor_module, "request_settling", request_settling)
    owner = cast(
        "Any", SimpleNamespace(_context=None, _commits=SimpleNamespace(spans=None), _key=ChangeSetKey("ws", "main"))
    )
    request = QueuedRequest(3, RequestId("r"), action=action)
    decision = Decision(3, RequestId("r"), outcome, position=position)
    await Processor._settle(owner, request, cast("Any", None), decision, earlier, 20)
    assert found == asked
