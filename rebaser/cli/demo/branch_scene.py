"""The last scene of the demo: edits a branch, shows the derived values that change, settles a conflict, applies the
branch, and reverts the apply.

Invariant: before the apply and after the undo, the demo's change set has its own values, not those of the branch.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from rebaser.cli.demo import model
from rebaser.cli.demo.environment import Distribution, Environment
from rebaser.cli.demo.screen import BranchFacts
from rebaser.cli.errors import CommandFailed
from rebaser_client import BranchConflict, RebaserClient, Set
from rebaser_core.messages import EnqueueUpdatesResponse, Success

IN_BRANCH, MEANWHILE = 100_000_000, 50_000_000  # bytes that the branch and its target add to a size

Check = Callable[[str, str, Environment], Awaitable[dict[str, str]]]
"""A function that compares all values of a change set with independently computed values, and returns some of them as
texts, by id.

Its arguments are a description of the change set for messages, the name of the change set, and the environment from
which the expected values are computed.
"""


@dataclass(frozen=True, slots=True)
class BranchScene:
    """Plays the scene in `change_set`, with the distribution `name` of `environment`. `timeout` is the maximum number
    of seconds for each step."""

    client: RebaserClient
    workspace: str
    change_set: str
    environment: Environment
    name: str
    check: Check
    timeout: float

    @property
    def branch(self) -> str:
        return f"larger-{self.change_set.removeprefix('run-')}"

    async def play(self) -> BranchFacts:
        """Play the scene. Raise `CommandFailed` if a step has an unexpected result."""
        client, workspace, head, branch = self.client, self.workspace, self.change_set, self.branch
        await client.create_branch(workspace, branch, head, wait="derived", timeout=self.timeout)
        ours, theirs = self._grown(IN_BRANCH), self._grown(MEANWHILE)
        await self._edit(branch, ours)
        before = await self.check("the change set beside its branch", head, self.environment)
        in_branch = await self.check("the branch", branch, ours)
        follows = (await client.changes(workspace, branch, derived=True)).derived
        await self._edit(head, theirs)
        await client.rebase(workspace, branch, timeout=self.timeout)
        found = await client.conflicts(workspace, branch)
        conflict = self._only(found.conflicts)
        await client.resolve(workspace, branch, take=branch, at=found.info.sequence, timeout=self.timeout)
        await self._covered(await client.apply(workspace, branch, timeout=self.timeout))
        after_apply = await self.check("after the apply", head, ours)
        await self._covered(await client.undo(workspace, head, timeout=self.timeout))
        after_undo = await self.check("after the undo", head, theirs)
        about = (self.name, head, branch, len(follows), conflict)
        return BranchFacts(*about, before, in_branch, after_apply, after_undo)

    def _grown(self, growth: int) -> dict[str, Distribution]:
        distribution = self.environment[self.name]
        return {**self.environment, self.name: replace(distribution, size=distribution.size + growth)}

    async def _edit(self, change_set: str, environment: Environment) -> None:
        update = model.size_update(environment[self.name])
        await self.client.enqueue_updates_with_reply(
            self.workspace, change_set, [update], wait="derived", timeout=self.timeout
        )

    async def _covered(self, response: EnqueueUpdatesResponse) -> None:
        """Wait until derived values are up to date as of the commit in `response`."""
        assert isinstance(response.status, Success)  # noqa: S101 - any other status is raised as an error
        commit = response.status.commit
        await self.client.wait_covered(self.workspace, self.change_set, commit, timeout=self.timeout)

    def _only(self, conflicts: tuple[BranchConflict, ...]) -> tuple[int, int, int]:
        """Return the three sizes in the single conflict: at the base, in the change set, and in the branch."""
        sizes = [side.value for one in conflicts for side in (one.base, one.theirs, one.ours) if isinstance(side, Set)]
        grown = [self.environment[self.name].size + growth for growth in (0, MEANWHILE, IN_BRANCH)]
        if len(conflicts) != 1 or sizes != grown:
            raise CommandFailed(f"the rebase should have found one conflict, with the sizes {grown}, but found {sizes}")
        return grown[0], grown[1], grown[2]
