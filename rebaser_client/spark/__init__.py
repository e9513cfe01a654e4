"""A Spark data source: the values of change sets as a table, and their commits as a table or a stream.

    from rebaser_client.spark import RebaserDataSource

    spark.dataSource.register(RebaserDataSource)
    prices = spark.read.format("rebaser").option("nats", url).option("workspace", "shop").load()

Spark calls `source`. `options` reads the options, `tables` builds rows, `logs` reads NATS, and `blocking` calls `logs`
from processes without an event loop.

Programs that use Spark import this package; no other part of Rebaser does. It needs PySpark. It may import the other
packages of `rebaser_client`, and `rebaser_core`.
"""

try:
    from rebaser_client.spark.source import RebaserDataSource
except ModuleNotFoundError as error:
    if error.name != "pyspark":
        raise
    raise ModuleNotFoundError("this needs PySpark: pip install 'rebaser[spark]'", name=error.name) from error

__all__ = ["RebaserDataSource"]
