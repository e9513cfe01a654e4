"""Compares change sets of the product with their books in the model of a `Ledger`."""

import json
import random
from typing import Any

import anyio

from rebaser_client import RebaserClient
from rebaser_client.log.branches import BranchInfo
from rebaser_core.values import State
from tests.chaos.branch_ledger import Differs, Ledger
from tests.chaos.branch_requests import short, text_of, wire_of
from tests.chaos.system import ENOUGH
from tests.driver.formulas import Meaning
from tests.driver.oracle import Oracle
from tests.support.branch_books import Book, Definition


class Comparison:
    """Compares change sets of the workspace of `ledger`. `formulas` has the meaning of each formula in it."""

    def __init__(self, client: RebaserClient, ledger: Ledger, formulas: dict[str, Meaning]) -> None:
        self._client = client
        self._ledger = ledger
        self._formulas = formulas

    async def compare(self, name: str, rng: random.Random) -> None:
        """Compare the change set with its book, now or at an older position."""
        ledger = self._ledger
        begin = ledger.world.books[name][0].sequence
        known = [at for at in ledger.logs[name] if ledger.positions.in_model(at) >= begin]
        at = known[-1] if rng.random() < 0.7 else rng.choice(known)
        book = ledger.world.book(name, ledger.positions.in_model(at))
        await self._values(name, at, book)
        await self._branch(name, at, book)

    async def compare_at_rest(self, name: str) -> None:
        """Compare the change set with its book at a position at which its derived values are up to date."""
        ledger = self._ledger
        with anyio.fail_after(ENOUGH):
            while True:
                info = await self._client.branch(ledger.workspace, name)
                assert info is not None
                await ledger.follow()  # servers may have rebased the branch since
                values = await self._client.values(ledger.workspace, name, at=info.sequence)
                stale = any(value.state is State.STALE for value in values.values())
                if not stale and ledger.logs[name][-1] >= info.sequence:
                    break
                await anyio.sleep(0.1)
        await self._values(name, info.sequence, ledger.world.book(name, ledger.positions.in_model(info.sequence)))

    async def _values(self, name: str, at: int, book: Book) -> None:
        """Compare definitions, and derived values with those that an evaluator of the tests computes from them. Derived
        values may be stale."""
        items = await self._client.items(self._ledger.workspace, name, at=at)
        found: dict[str, Definition] = {}
        for item in items:
            if item.definition is not None:
                found[item.id] = text_of(item.definition)
            else:
                unset = item.value.state is State.UNSET
                one = {"op": "unset"} if unset else {"op": "set", "value": item.value.value}
                found[item.id] = json.dumps(one, sort_keys=True)
        wanted = {} if book.status == "deleted" else book.cells
        _check(found == wanted, f"{name}@{at}", _differing(found, wanted), "found and wanted")
        oracle = Oracle({id_: wire_of(id_, one) for id_, one in wanted.items()}, self._formulas).found
        for item in items:
            value, right = item.value, oracle[item.id]
            if value.state is State.STALE:
                continue
            code = "" if value.error is None else value.error.code
            told = (value.state.value, json.dumps(value.value), code)
            _check(
                told == (right.state, json.dumps(right.value), right.code),
                f"{item.id} in {name}@{at}",
                told,
                f"should be {right}",
            )
        self._ledger.counts["values"] += len(items)

    async def _branch(self, name: str, at: int, book: Book) -> None:
        ledger, workspace = self._ledger, self._ledger.workspace
        info = await self._client.branch(workspace, name, at=at)
        assert info is not None
        said = (info.status, info.target, info.protected)
        wanted = (book.status, book.target, book.protected)
        _check(said == wanted, f"{name}@{at}", said, f"should be {wanted}")
        if book.status == "deleted" or book.target is None:
            return
        base = self._base(info)
        _check(base == book.base, f"{name}@{at} has the base", info.base, f"{base} in the model, not {book.base}")
        diff = await self._client.changes(workspace, name, at=at)
        changes: dict[str, Any] = {one.id: (text_of(one.base), text_of(one.ours)) for one in diff.changes}
        here = {id_: book.cells.get(id_) for id_ in book.changes}
        right = {id_: (base, here[id_]) for id_, base in book.changes.items() if base != here[id_]}
        _check(changes == right, f"{name}@{at} changed", _differing(changes, right), "found and wanted")
        page = await self._client.conflicts(workspace, name, at=at)
        conflicts = {one.id: (text_of(one.base), text_of(one.ours), text_of(one.theirs)) for one in page.conflicts}
        told = {id_: (one.base, book.cells.get(id_), book.theirs(id_)) for id_, one in book.conflicts.items()}
        _check(conflicts == told, f"{name}@{at} conflicts about", _differing(conflicts, told), "found and wanted")
        _check(info.conflicts == len(told), f"{name}@{at}", info.conflicts, f"conflicts, not {len(told)}")
        ledger.counts["conflicts"] += len(told)

    def _base(self, info: BranchInfo) -> int:
        world = self._ledger.world
        if info.target is None or info.target not in world.books or not info.base:
            return 0
        return world.book(info.target, self._ledger.positions.in_model(info.base)).sequence


def _check(right: bool, where: str, found: object, wanted: str) -> None:
    if not right:
        raise Differs(f"{where}: {short(found)} {short(wanted)}")


def _differing(found: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    ids = found.keys() | wanted.keys()
    return {id_: (found.get(id_), wanted.get(id_)) for id_ in ids if found.get(id_) != wanted.get(id_)}
