"""The work of a task: send its Arrow batches and summarize the outcomes."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from pyspark import TaskContext

from pykaproducer._load.messages import MessageColumns, MessageWriter
from pykaproducer._load.refused import DeadLetters, Fail, RefusedRowHandler
from pykaproducer._load.summary import Summary
from pykaproducer.producer import Producer
from pykaproducer.spark.options import SinkOptions
from pykaproducer.spark.producers import producer_for


def send(options: SinkOptions, columns: MessageColumns, batches: Iterator[Any]) -> Summary:
    """Send *columns* of all *batches* (``pyarrow.RecordBatch``), and return the summary.

    Waits until every row has an outcome. Raises if a row failed, unless it was sent to a
    dead-letter topic.
    """
    make = functools.partial(Producer, **options.producer_settings())
    with producer_for(options.settings, make) as producer:
        refused = refused_rows(options, producer)
        writer = MessageWriter(producer, options.topic, refused)
        for batch in batches:
            writer.write(columns.of(batch))
        return writer.finish()


def refused_rows(options: SinkOptions, producer: Producer) -> RefusedRowHandler:
    """Return the handler of rows that the producer rejects in this task."""
    context = TaskContext.get()
    assert context is not None, "not in a Spark task"
    who = f"Spark partition {context.partitionId()} (attempt {context.attemptNumber()})"
    if options.dead_letter is None:
        return Fail(who)
    return DeadLetters(producer, options.dead_letter, options.topic, who)
