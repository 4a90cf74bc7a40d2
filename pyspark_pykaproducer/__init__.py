"""Spark imports every module named ``pyspark_*`` and finds its data sources there.

One that cannot be imported hides the sources of all others, so nothing is imported here that could
fail: the sink itself is imported when a write is planned, where an error is shown to the user.
"""

from __future__ import annotations

from typing import Any

try:
    from pyspark.sql.datasource import DataSource
except ImportError:  # no Spark, or one before 4.0, which does not look for sources
    DataSource = object


class DefaultSource(DataSource):
    """``df.write.format("pykaproducer")`` and ``df.writeStream.format("pykaproducer")``."""

    @classmethod
    def name(cls) -> str:
        """What ``format()`` is given."""
        return "pykaproducer"

    def schema(self) -> Any:
        """Asked for where something is to be read, or a view has no columns."""
        from pykaproducer.spark import SinkError

        raise SinkError(
            "pykaproducer writes to Kafka and reads nothing; a view or a table of it names its "
            "columns, as (key STRING, value STRING)"
        )

    def writer(self, schema: Any, overwrite: bool) -> Any:
        """The writer of a batch: :class:`pykaproducer.spark.sink.BatchSink`."""
        from pykaproducer.spark.sink import BatchSink

        return BatchSink(self.options, schema, overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802 (Spark's name)
        """The writer of a micro-batch of a stream."""
        from pykaproducer.spark.sink import StreamSink

        return StreamSink(self.options, schema, overwrite)
