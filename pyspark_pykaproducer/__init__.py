"""The data source for Spark, which imports every module named ``pyspark_*`` to find them.

If one of these fails to import, the data sources of all others are unavailable. So nothing that
could fail is imported here: the sink itself is imported when a write is planned, where errors are
shown to the user.
"""

from __future__ import annotations

from typing import Any

try:
    from pyspark.sql.datasource import DataSource
except ImportError:  # Spark is missing, or older than 4.0, which does not look for data sources
    DataSource = object


class DefaultSource(DataSource):
    """``df.write.format("pykaproducer")`` and ``df.writeStream.format("pykaproducer")``."""

    #: Whether this is a copy. Spark creates an object to plan a write. For the process that commits
    #: the micro-batches of a stream it creates another one, and sends it there.
    _is_copy = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._is_copy = True

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format()``."""
        return "pykaproducer"

    def schema(self) -> Any:
        """Raise: called when data is to be read, or for a view without columns."""
        from pykaproducer.spark import SinkError

        raise SinkError(
            "pykaproducer can only write to Kafka, not read; for a view or a table, declare the "
            "columns, as (key STRING, value STRING)"
        )

    def writer(self, schema: Any, overwrite: bool) -> Any:
        """Return the writer of a batch: :class:`pykaproducer.spark.sink.BatchSink`."""
        from pykaproducer.spark.sink import BatchSink

        return BatchSink(self.options, schema, overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802 (Spark's name)
        """Return the writer of a stream's micro-batch."""
        from pykaproducer.spark.sink import StreamSink

        return StreamSink(self.options, schema, overwrite, commits=self._is_copy)
