"""Change sets as Spark DataFrames: their values, and their commits as a table or a stream.

from rebaser_client.spark import RebaserDataSource

spark.dataSource.register(RebaserDataSource)
prices = spark.read.format("rebaser").option("nats", url).option("workspace", "shop").load()
"""

from rebaser_client.spark.source import RebaserDataSource

__all__ = ["RebaserDataSource"]
