"""``write(df, ...)``: a write with the same tasks that returns its summary to the caller."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

import pyarrow

from pykaproducer._exactly_once.setup import WriteKind
from pykaproducer._load.messages import MessageColumns
from pykaproducer._load.summary import Summary
from pykaproducer.config import canonical_name
from pykaproducer.spark import value_options
from pykaproducer.spark.columns import columns_of
from pykaproducer.spark.once import OnceWrite, query_of
from pykaproducer.spark.options import SPELLED, SinkError, SinkOptions
from pykaproducer.spark.summaries import as_batch, collect
from pykaproducer.spark.task import refused_rows, send

#: Python's spelling of options.
_OPTIONS = {
    "on_error": "onError",
    "exactly_once": "exactlyOnce",
    "transactional_id_prefix": "transactionalIdPrefix",
    "state_topic": "stateTopic",
    "write_id": "writeId",
    "start_without_state": "startWithoutState",
    "on_partial_commit": "onPartialCommit",
    **{
        re.sub("[A-Z.]", lambda found: f"_{found[0].lower().strip('.')}", name): name
        for name in value_options.SPELLED.values()
    },
}


def write(df: Any, *, batch: int | None = None, **options: Any) -> Summary:
    """Write a DataFrame now, and return a summary.

    Equivalent to ``df.write.format("pykaproducer").options(...).mode("append").save()``, except
    that ``save()`` cannot return anything. Also works with Spark Connect and in ``foreachBatch``.

    Args:
        df (pyspark.sql.DataFrame): with the columns that the sink accepts.
        batch (int): with ``exactlyOnce``, in ``foreachBatch``: the number of the micro-batch. A
            batch that was committed before is not written again.
        options: ``topic``, ``onError``, the options of values in Avro and those of writes that are
            exactly once, and the producer's settings, as ``kafka.linger.ms`` or by their Python
            names, as ``linger_ms``. Python's spelling of options is accepted, too, as ``on_error``.

    Returns:
        Summary: rows, bytes, first and last offset by topic and partition. For a batch that was
        committed before it has no rows, and ``repeated`` is true.

    Raises:
        SinkError: an option or a column is invalid; nothing was written.
        ExactlyOnceError: with ``exactlyOnce``: the batch was not committed, or not entirely.
        pyspark.errors.PySparkException: a task failed permanently; includes its error's text.
    """
    given = SinkOptions.of(_as_sink_options(options))
    columns = columns_of(df.schema, given)
    planned = given.for_tasks()
    once = OnceWrite.of(planned, WriteKind.SINGLE, batch)
    if once is not None:
        once.check_query(query_of(df.sparkSession))
    planned.log_without_effect()
    if once is None:
        if batch is not None:
            raise SinkError("batch has an effect only with exactlyOnce=true")
        return Summary.of(collect(df, functools.partial(_send, planned, columns)))
    return once.run(
        lambda: collect(df, functools.partial(_write_once, once, columns)), df.sparkSession
    )


def _as_sink_options(options: dict[str, Any]) -> dict[str, str]:
    """Return *options* in the sink's form: as text, with a prefix for the producer's settings."""
    found = {}
    for name, value in options.items():
        if value is None:
            continue
        if name in _OPTIONS:
            name = _OPTIONS[name]
        elif name.lower() not in SPELLED and canonical_name(name) is not None:
            name = f"kafka.{name}"
        found[name] = ",".join(value) if isinstance(value, (list, tuple)) else str(value)
    return found


def _send(
    options: SinkOptions, columns: MessageColumns, batches: Iterator[pyarrow.RecordBatch]
) -> Iterator[pyarrow.RecordBatch]:
    yield as_batch(send(options, columns, batches))


def _write_once(
    once: OnceWrite, columns: MessageColumns, batches: Iterator[pyarrow.RecordBatch]
) -> Iterator[pyarrow.RecordBatch]:
    yield as_batch(once.task(columns, batches, refused_rows))
