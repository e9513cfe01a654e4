"""Change sets as DataFrames on a real Spark: values and commits as tables, and commits as a stream."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread

from rebaser.change_set.log.commit_log import CommitLog
from rebaser.dvu.spark.engine import Engine
from rebaser_client.blobs import open_blobs
from rebaser_client.jetstream import JetStream
from rebaser_client.log.reader import StateLoader
from rebaser_client.spark import RebaserDataSource
from rebaser_core.commit import Authorship, Computed, Decision, Kind, Marking, Outcome, Reverts, Source
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.streams.subjects import Subjects
from rebaser_core.updates import Derive, Remove, Set, Unset
from rebaser_core.values import Fault

pytestmark = [pytest.mark.anyio, pytest.mark.spark, pytest.mark.usefixtures("topology")]


class Writer:
    """Appends to logs as owners do."""

    def __init__(self, js: JetStream, subjects: Subjects) -> None:
        self._js, self._subjects = js, subjects
        self._blobs = open_blobs(None, js, subjects.blobs_bucket)
        self._ids = (str(number) for number in itertools.count())

    async def append(self, change_set: str, kind: Kind, *delta: Any, inline_max: int = 100_000, **more: Any) -> int:
        key = ChangeSetKey("shop", change_set)
        log = CommitLog(
            self._js,
            self._subjects,
            key,
            await StateLoader(self._js, self._subjects, self._blobs).load(key),
            blobs=self._blobs,
            owner="owner",
            inline_max=inline_max,
            retry_window=60,
            now_ms=lambda: 1_700_000_000_123,
            new_id=lambda: next(self._ids),
        )
        async with log.append_lock():
            return await log.append(log.draft(kind, delta=delta, **more))


@pytest.fixture
def writer(js: JetStream, subjects: Subjects) -> Writer:
    return Writer(js, subjects)


@pytest.fixture(scope="module")
def spark(engine: Engine) -> Iterator[Any]:
    """A Spark session in which the data source is registered."""
    from pyspark.sql.connect.session import SparkSession

    jvm = engine._sessions._jvm
    assert jvm is not None
    spark = SparkSession(connection=jvm.url)
    spark.conf.set("spark.sql.shuffle.partitions", "1")  # 200 tasks without data would take seconds
    spark.dataSource.register(RebaserDataSource)
    yield spark
    spark.stop()


@pytest.fixture
def options(nats_url: str, subjects: Subjects) -> dict[str, str]:
    return {"nats": nats_url, "prefix": subjects.prefix, "workspace": "shop"}


async def test_values_are_queried_and_joined(spark: Any, options: dict[str, str], writer: Writer) -> None:
    """Each change set is read at one log sequence. A value is there exactly, and as a number or text to compute
    with."""
    await writer.append("main", Kind.REBASE, Set("price", 9.5), Set("qty", 3), Set("name", "tea"), Unset("note"))
    total = Derive("total", "product", {"values": ("price", "qty")})
    at = await writer.append("main", Kind.REBASE, total, Derive("bad", "sum", {"values": ("gone",)}))
    fault = Fault("missing_input", "gone is not there", "bad")
    main = await writer.append("main", Kind.DVU, Computed("total", 28.5), Computed("bad", fault=fault), covers=at)
    draft = await writer.append("draft", Kind.REBASE, Set("price", 10), Set("big", 2**60 + 1), Set("l", [None, True]))

    def look() -> None:
        spark.read.format("rebaser").options(**options).load().createOrReplaceTempView("model")
        rows = {(row.change_set, row.id): row for row in spark.table("model").collect()}
        assert len(rows) == 9
        assert {row.sequence for row in rows.values() if row.change_set == "main"} == {main}
        assert {row.sequence for row in rows.values() if row.change_set == "draft"} == {draft}
        found = rows["main", "total"]
        assert (found.state, found.kind, found.number, found.text, found.json) == ("ok", "float", 28.5, None, "28.5")
        found = rows["main", "name"]
        assert (found.kind, found.number, found.text, found.json) == ("text", None, "tea", '"tea"')
        found = rows["main", "bad"]
        assert (found.state, found.json) == ("error", None)
        assert (found.error_code, found.error_message, found.error_origin) == (fault.code, fault.message, fault.origin)
        assert (rows["main", "note"].state, rows["main", "note"].json) == ("unset", None)
        assert rows["draft", "big"].json == str(2**60 + 1)
        assert (rows["draft", "l"].kind, rows["draft", "l"].json) == ("array", "[null,true]")

        spark.createDataFrame([("price", "EUR")], "id STRING, unit STRING").createOrReplaceTempView("units")
        joined = spark.sql(
            "SELECT a.number - b.number AS more, unit FROM model a JOIN model b USING (id) JOIN units USING (id) "
            "WHERE a.change_set = 'draft' AND b.change_set = 'main'"
        )
        assert [tuple(row) for row in joined.collect()] == [(0.5, "EUR")]

    await to_thread.run_sync(look)


async def test_commits_are_a_table(spark: Any, options: dict[str, str], writer: Writer) -> None:
    decided = Decision(7, RequestId("request"), Outcome.SUCCESS, performed=2)
    edits = (Set("a", 1), Derive("b", "sum", {"values": ("a",)}))
    first = await writer.append("main", Kind.REBASE, *edits, requests=(decided,), covers=0, inline_max=1)
    second = await writer.append("main", Kind.DVU, Computed("b", 1.0), covers=first)
    await writer.append("draft", Kind.REBASE, Set("c", "x"))

    def look() -> None:
        spark.read.format("rebaser").options(**options, table="commits").load().createOrReplaceTempView("log")
        rebase, dvu = spark.sql(
            "SELECT *, unix_millis(at) AS ms FROM log WHERE change_set = 'main' ORDER BY sequence"
        ).collect()
        assert (rebase.sequence, rebase.previous, rebase.kind, rebase.owner) == (first, 0, "rebase", "owner")
        assert (rebase.ms, rebase.covers) == (1_700_000_000_123, 0)
        assert [tuple(one) for one in rebase.requests] == [(7, "request", "success", 2, "", "", "", "")]
        assert [(one.op, one.id, one.function, one.json) for one in rebase.changes] == [
            ("set", "a", None, "1"),
            ("derive", "b", "sum", None),
        ]
        assert (rebase.before, rebase.from_change_set, rebase.protected, rebase.status) == (None,) * 4
        assert (dvu.sequence, dvu.previous, dvu.covers) == (second, first, first)
        assert [(one.op, one.id, one.number) for one in dvu.changes] == [("computed", "b", 1.0)]
        late = spark.read.format("rebaser").options(
            **options, table="commits", start=str(first), changeSet="nobody,main"
        )
        assert [row.sequence for row in late.load().collect()] == [second]

    await to_thread.run_sync(look)


async def test_commits_tell_what_they_replaced_applied_took_back_and_marked(
    spark: Any, options: dict[str, str], writer: Writer
) -> None:
    first = await writer.append("main", Kind.REBASE, Set("a", 1), before=())
    decided = Decision(7, RequestId("request"), Outcome.SUCCESS, performed=2)
    about = {"requests": (decided,), "authors": (Authorship("ann", "dearer"),), "source": Source("draft", 5)}
    stood = (Set("a", 1), Derive("b", "sum", {"of": "a"}))
    applied = await writer.append("main", Kind.REBASE, Set("a", 2), Remove("b"), before=stood, inline_max=1, **about)
    taken_back = await writer.append("main", Kind.REBASE, Set("a", 1), before=None, reverts=Reverts(applied, applied))
    await writer.append("main", Kind.MARK, marking=Marking(protected=True))

    def look() -> None:
        spark.read.format("rebaser").options(**options, table="commits").load().createOrReplaceTempView("facts")
        rows = spark.sql("SELECT * FROM facts ORDER BY sequence").collect()
        assert [row.sequence for row in rows][:3] == [first, applied, taken_back]
        _, apply, revert, mark = rows
        assert (apply.from_change_set, apply.from_sequence, apply.requests[0].author_message) == ("draft", 5, "dearer")
        assert [(one.op, one.id, one.function, one.json) for one in apply.before] == [
            ("set", "a", None, "1"),
            ("derive", "b", "sum", None),
        ]
        assert (revert.before, revert.reverts_first, revert.reverts_last) == (None, applied, applied)
        assert (mark.protected, mark.status, mark.from_change_set) == (True, None, None)
        values = spark.read.format("rebaser").options(**options).load()
        assert [(row.id, row.edited) for row in values.collect()] == [("a", taken_back)]

    await to_thread.run_sync(look)


@pytest.mark.long
async def test_a_stream_follows_commits_and_goes_on_where_it_was(
    spark: Any, options: dict[str, str], writer: Writer, tmp_path: Path
) -> None:
    first = [
        await writer.append("main", Kind.REBASE, Set("a", 1)),
        await writer.append("draft", Kind.REBASE, Set("a", 2)),
    ]
    frame = spark.readStream.format("rebaser").options(**options, table="commits").load()
    out, state = tmp_path / "out", tmp_path / "state"

    def start() -> Any:
        selected = frame.selectExpr("sequence", "change_set", "changes[0].number AS number")
        return selected.writeStream.format("parquet").option("checkpointLocation", str(state)).start(str(out))

    def read() -> list[tuple[Any, ...]]:
        return sorted(tuple(row) for row in spark.read.parquet(str(out)).collect())

    query = await to_thread.run_sync(start)
    await to_thread.run_sync(query.processAllAvailable)
    wanted = [(first[0], "main", 1.0), (first[1], "draft", 2.0)]
    wanted.append((await writer.append("main", Kind.REBASE, Set("a", 3)), "main", 3.0))
    await to_thread.run_sync(query.processAllAvailable)
    assert await to_thread.run_sync(read) == wanted
    await to_thread.run_sync(query.stop)
    wanted.append((await writer.append("draft", Kind.REBASE, Set("a", 4)), "draft", 4.0))
    query = await to_thread.run_sync(start)
    await to_thread.run_sync(query.processAllAvailable)
    await to_thread.run_sync(query.stop)
    assert await to_thread.run_sync(read) == wanted


async def test_a_failure_says_what_to_do_and_no_secret(
    spark: Any, options: dict[str, str], unused_port: int, tmp_path: Path
) -> None:
    from pyspark.errors import PySparkException

    secret = "s3same0pen"
    away = f"nats://joe:{secret}@127.0.0.1:{unused_port}"
    credentials = tmp_path / "nats.creds"
    credentials.write_text(f"-----BEGIN {secret}-----\n")
    wrong: list[tuple[dict[str, str], str]] = [
        ({"nats": away}, "no connection to NATS at 127.0.0.1"),
        ({"credentials": str(credentials)}, "is not a NATS credentials file"),
        ({"token": secret, "prefix": "nobody"}, "check that the prefix"),
        ({"token": secret, "workspace": ""}, '"workspace" is missing'),
    ]

    def look() -> None:
        for more, text in wrong:
            with pytest.raises(PySparkException) as caught:
                spark.read.format("rebaser").options(**{**options, **more}).load().count()
            assert text in str(caught.value)
            assert secret not in str(caught.value)

    await to_thread.run_sync(look)
