"""A Spark data source: the values of change sets as a table, and their commits as a table or a stream.

    from rebaser_client.spark import RebaserDataSource

    spark.dataSource.register(RebaserDataSource)
    prices = spark.read.format("rebaser").option("nats", url).option("workspace", "shop").load()

Spark calls `source`. `options` parses the options. `registry` lists the tables; `tables`, `branch_tables` and
`garbage_tables` build their rows. `logs` reads NATS, and `blocking` calls `logs` from processes without an event loop.

This package needs PySpark. Programs that use Spark import it; no other part of Rebaser does. It may import the other
packages of `rebaser_client`, and `rebaser_core`.
"""

try:
    from rebaser_client.spark.source import RebaserDataSource
except ModuleNotFoundError as error:
    if error.name != "pyspark":
        raise
    text = "rebaser_client.spark needs PySpark: pip install 'rebaser[spark]'"
    raise ModuleNotFoundError(text, name=error.name) from error

__all__ = ["RebaserDataSource"]
