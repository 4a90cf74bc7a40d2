"""``write(df, ...)``: a write with the same tasks that returns its summary to the caller."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pyarrow

from pykaproducer._load.summary import Summary
from pykaproducer.config import canonical_name
from pykaproducer.spark.columns import columns_of
from pykaproducer.spark.options import SinkOptions
from pykaproducer.spark.summaries import as_batch, collect
from pykaproducer.spark.task import send


def write(df: Any, **options: Any) -> Summary:
    """Write a DataFrame now, and return a summary.

    Equivalent to ``df.write.format("pykaproducer").options(...).mode("append").save()``, except
    that ``save()`` cannot return anything. Also works with Spark Connect and in ``foreachBatch``.

    Args:
        df (pyspark.sql.DataFrame): with the columns that the sink accepts.
        options: ``topic``, ``onError`` (or ``on_error``), and the producer's settings, as
            ``kafka.linger.ms`` or by their Python names, as ``linger_ms``.

    Returns:
        Summary: rows, bytes, first and last offset by topic and partition.

    Raises:
        SinkError: an option or a column is invalid; nothing was written.
        pyspark.errors.PySparkException: a task failed permanently; includes its error's text.
    """
    planned = SinkOptions.of(_as_sink_options(options))
    columns = columns_of(df.schema, planned.topic)
    return collect(df, functools.partial(_send, planned, columns))


def _as_sink_options(options: dict[str, Any]) -> dict[str, str]:
    """Return *options* in the sink's form: as text, with a prefix for the producer's settings."""
    found = {}
    for name, value in options.items():
        if value is None:
            continue
        if name == "on_error":
            name = "onError"
        elif canonical_name(name) is not None:
            name = f"kafka.{name}"
        found[name] = ",".join(value) if isinstance(value, (list, tuple)) else str(value)
    return found


def _send(
    options: SinkOptions, columns: tuple[str, ...], batches: Iterator[pyarrow.RecordBatch]
) -> Iterator[pyarrow.RecordBatch]:
    yield as_batch(send(options, columns, batches))
