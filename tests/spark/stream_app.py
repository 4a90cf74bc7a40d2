"""A streaming application to be killed, with one file per micro-batch; run by test_streams.py."""

from __future__ import annotations

import functools
import json
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

from pyspark import TaskContext

from tests._support.fixtures.spark import spark_session
from tests.spark.helper import Meeting

#: It waits after this many batches of 1,000 rows; a file has 20. A sink to which Spark passes rows
#: sends the first 10,000 of them together.
_MIDDLE = 15


def stop_in(path: str, batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the batches; in the third micro-batch, yield a part of it, and wait to be killed."""
    context = TaskContext.get()
    assert context is not None
    third = context.getLocalProperty("streaming.sql.batchId") == "2"
    for number, batch in enumerate(batches):
        if third and number == _MIDDLE:
            Meeting.keep(path)
        yield batch


def main(arguments: dict[str, str]) -> None:
    """Write every file of the input, one per micro-batch."""
    local = pathlib.Path(arguments["local"])
    spark = spark_session(
        "local[2]", local, **{"spark.sql.execution.arrow.maxRecordsPerBatch": "1000"}
    )
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(arguments["input"])
    if "finish" not in arguments:
        lines = lines.mapInArrow(functools.partial(stop_in, arguments["sign"]), "value string")
    query = (
        lines.writeStream.format("pykaproducer")
        .option("kafka.bootstrap.servers", arguments["servers"])
        .option("topic", arguments["topic"])
        .option("checkpointLocation", arguments["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
