"""Change sets as Spark DataFrames: their values, and their commits as a table or a stream.

from rebaser_client.spark import RebaserDataSource

spark.dataSource.register(RebaserDataSource)
prices = spark.read.format("rebaser").option("nats", url).option("workspace", "shop").load()
"""

try:
    from rebaser_client.spark.source import RebaserDataSource
except ModuleNotFoundError as error:
    if error.name != "pyspark":
        raise
    raise ModuleNotFoundError("this needs PySpark: pip install 'rebaser[spark]'", name=error.name) from error

__all__ = ["RebaserDataSource"]
