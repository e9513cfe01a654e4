"""Branches as DataFrames on a real Spark: change sets, their changes and their conflicts, now and at earlier
positions."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from anyio import to_thread

from rebaser.dvu.spark.engine import Engine
from rebaser_client import Derive, RebaserClient, Remove, Set, Update
from rebaser_client.jetstream import JetStream
from rebaser_client.spark import RebaserDataSource
from rebaser_core.streams.subjects import Subjects
from tests.support.history import commit_of
from tests.support.owners import Engine as EngineHere
from tests.support.owners import serving

pytestmark = [pytest.mark.anyio, pytest.mark.spark, pytest.mark.usefixtures("topology")]


@pytest.fixture(scope="module")
def spark(engine: Engine) -> Iterator[Any]:
    """A Spark session in which the data source is registered."""
    from pyspark.sql.connect.session import SparkSession

    jvm = engine._sessions._jvm
    assert jvm is not None
    spark = SparkSession(connection=jvm.url)
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    spark.dataSource.register(RebaserDataSource)
    yield spark
    spark.stop()


@pytest.fixture
async def client(nats_url: str, js: JetStream, subjects: Subjects) -> AsyncIterator[RebaserClient]:
    engine = EngineHere()
    engine.go.set()
    async with (
        serving(js, subjects, engine),
        RebaserClient.connect(nats_url, prefix=subjects.prefix) as connected,
    ):
        yield connected


async def edit(client: RebaserClient, name: str, *updates: Update) -> int:
    """Edit, and return the newest commit once derived values are up to date."""
    await client.enqueue_updates_with_reply("shop", name, updates, wait="derived")
    info = await client.branch("shop", name)
    assert info is not None
    return info.sequence


async def test_branches_are_tables_now_and_as_of_a_position(
    spark: Any, nats_url: str, subjects: Subjects, client: RebaserClient
) -> None:
    total = Derive("total", "cel", {"n": "price"}, {"expr": "n * 2.0"})
    await edit(client, "main", Set("price", 9.5), Set("qty", 3), Set("gone", True), total)
    born = await client.create_branch("shop", "fix", follow="manual")
    await edit(client, "fix", Set("price", 12), Set("qty", 4), Remove("gone"), Set("new", [1]))
    dearer = Derive("total", "cel", {"n": "price"}, {"expr": "n * 3.0"})
    cut = await edit(client, "fix", dearer)
    between = await edit(client, "main", Set("price", 10.5))
    moved = await edit(client, "main", Set("qty", 4))
    await client.create_branch("shop", "late", follow="manual")
    await client.create_branch("shop", "old", closed=True)
    await client.create_branch("shop", "dropped", follow="manual")
    await edit(client, "dropped", Set("price", 1))
    tombstone = commit_of(await client.delete_change_set("shop", "dropped"))
    await client.protect("shop", "main")

    def table(name: str, **more: str) -> list[Any]:
        options = {"nats": nats_url, "prefix": subjects.prefix, "workspace": "shop", "table": name, **more}
        rows: list[Any] = spark.read.format("rebaser").options(**options).load().collect()
        return rows

    def sides(rows: list[Any]) -> dict[str, tuple[object, ...]]:
        return {row.id: tuple(side and side.json for side in (row.base, row.ours, row.theirs)) for row in rows}

    def look() -> None:
        found = {row.change_set: row for row in table("change_sets")}
        assert {name: row.status for name, row in found.items()} == {
            "main": "open", "fix": "open", "late": "open", "old": "kept", "dropped": "deleted",
        }  # fmt: skip
        fix, main = found["fix"], found["main"]
        assert (fix.sequence, fix.target, fix.base_sequence, fix.changes) == (cut, "main", born.base, 5)
        assert (fix.origin, fix.origin_sequence, fix.behind) == ("main", born.base, True)
        assert (fix.conflicts, fix.protected) == (0, False)
        assert (main.target, main.base_sequence, main.behind, main.origin_sequence) == (None,) * 4
        assert main.protected
        assert (found["dropped"].sequence, found["dropped"].changes) == (tombstone, 0)
        assert found["late"].behind is False

        rows = table("changes")
        assert {row.change_set for row in rows} == {"fix"}
        assert {(row.sequence, row.base_sequence, row.target_sequence > born.base) for row in rows} == {
            (cut, born.base, True)
        }
        assert sides(rows) == {
            "price": ("9.5", "12", "10.5"),
            "qty": ("3", "4", "4"),
            "gone": ("true", None, "true"),
            "new": (None, "[1]", None),
            "total": (None, None, None),
        }
        by_id = {row.id: row for row in rows}
        assert (by_id["price"].ours.op, by_id["price"].ours.number, by_id["gone"].ours) == ("set", 12.0, None)
        of = by_id["total"].ours
        assert (of.op, of.function, of.inputs, of.params, of.kind) == (
            "derive", "cel", '{"n":"price"}', '{"expr":"n * 3.0"}', None,
        )  # fmt: skip
        assert [(row.moved, row.landed) for row in (by_id["price"], by_id["qty"], by_id["new"])] == [
            (True, False), (True, True), (False, False),
        ]  # fmt: skip
        assert table("conflicts") == []

        before = {"at": str(cut)}
        assert {row.change_set: (row.status, row.behind) for row in table("change_sets", **before)} == {
            "main": ("open", None), "fix": ("open", False),
        }  # fmt: skip
        assert sides(table("changes", **before))["price"] == ("9.5", "12", "9.5")
        found = sides(table("changes", at=str(between)))
        assert (found["price"], found["qty"]) == (("9.5", "12", "10.5"), ("3", "4", "3"))
        assert {row.change_set for row in table("changes", at=str(tombstone - 1))} == {"fix", "dropped"}
        values = {(row.change_set, row.id): row.json for row in table("values", **before)}
        assert {name for name, _ in values} == {"main", "fix"}
        assert (values["main", "price"], values["fix", "price"]) == ("9.5", "12")
        assert table("values", at="1d") == []
        rows = table("commits", **{"from": str(born.sequence), "to": str(moved)})
        assert {row.kind for row in rows} == {"rebase", "dvu"}
        assert (min(row.sequence for row in rows), max(row.sequence for row in rows)) == (born.sequence + 1, moved)

    await to_thread.run_sync(look)

    await client.rebase("shop", "fix")

    def look_at_conflicts() -> None:
        rows = table("conflicts")
        assert {(row.change_set, row.target, row.base_sequence > moved - 1) for row in rows} == {("fix", "main", True)}
        assert sides(rows) == {"price": ("9.5", "12", "10.5")}
        assert [row.conflicts for row in table("change_sets", changeSet="fix")] == [1]
        assert table("conflicts", at=str(moved)) == []
        assert table("conflicts", changeSet="main,nobody,dropped") == []

    await to_thread.run_sync(look_at_conflicts)


async def test_what_cannot_be_read_says_what_to_do(
    spark: Any, nats_url: str, subjects: Subjects, client: RebaserClient, js: JetStream
) -> None:
    from pyspark.errors import PySparkException

    first = await edit(client, "main", Set("a", 1))
    await edit(client, "draft", Set("a", 1))
    last = await edit(client, "main", Set("a", 2))
    await js.purge(subjects.commits_stream, f"{subjects.root}.commits.shop.main", sequence=last)

    def count(**more: str) -> int:
        options = {"nats": nats_url, "prefix": subjects.prefix, "workspace": "shop", **more}
        return int(spark.read.format("rebaser").options(**options).load().count())

    def look() -> None:
        for table in ("values", "change_sets", "changes"):
            with pytest.raises(PySparkException, match=rf"main@{first} is no longer readable.*failOnDataLoss"):
                count(table=table, at=str(first))
        assert count(at=str(last - 1), failOnDataLoss="false") == 1
        with pytest.raises(PySparkException, match="there is no commit 99999 yet"):
            count(at="99999")

    await to_thread.run_sync(look)
