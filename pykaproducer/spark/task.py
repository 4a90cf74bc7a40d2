"""The work of a task: send its Arrow batches and summarize the outcomes."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark import TaskContext

from pykaproducer._load.refused import DeadLetters, Fail, RefusedRowHandler
from pykaproducer._load.summary import Summary
from pykaproducer._load.writer import Writer
from pykaproducer.producer import Producer
from pykaproducer.spark.options import SinkOptions
from pykaproducer.spark.producers import producer_for


def send(options: SinkOptions, columns: Sequence[str], batches: Iterator[Any]) -> Summary:
    """Send *columns* of all *batches* (``pyarrow.RecordBatch``).

    Waits until every row has an outcome. Raises if a row failed, unless it was sent to a
    dead-letter topic.
    """
    make = functools.partial(Producer, **options.producer_settings())
    with producer_for(options.settings, make) as producer:
        refused = _refused(options, producer)
        writer = Writer(producer, options.topic, refused)
        for batch in batches:
            writer.write(batch.select(list(columns)))
        return writer.finish()


def _refused(options: SinkOptions, producer: Producer) -> RefusedRowHandler:
    context = TaskContext.get()
    assert context is not None, "not in a Spark task"
    who = f"Spark partition {context.partitionId()} (attempt {context.attemptNumber()})"
    if options.dead_letter is None:
        return Fail(who)
    return DeadLetters(producer, options.dead_letter, options.topic, who)
