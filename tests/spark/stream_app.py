"""A streaming application to be killed: a file a micro-batch; run by test_streams.py."""

from __future__ import annotations

import functools
import json
import pathlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

from pyspark import TaskContext

from tests.fix_spark import spark_session


def stop_in(path: str, batches: Iterator[Any]) -> Iterator[Any]:
    """Hand on the first half of what comes; in the third micro-batch, leave a sign and wait."""
    context = TaskContext.get()
    assert context is not None
    number = context.getLocalProperty("streaming.sql.batchId")
    for batch in batches:
        if number != "2":
            yield batch
            continue
        half = batch.num_rows // 2
        yield batch.slice(0, half)
        pathlib.Path(path).touch()
        threading.Event().wait()


def main(arguments: dict[str, str]) -> None:
    """Write every file of the input, one a micro-batch."""
    local = pathlib.Path(arguments["local"])
    spark = spark_session(
        "local[2]", local, **{"spark.sql.execution.arrow.maxRecordsPerBatch": "1000"}
    )
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(arguments["input"])
    sign = local / "stopped"
    if "finish" not in arguments:
        lines = lines.mapInArrow(functools.partial(stop_in, str(sign)), "value string")
    query = (
        lines.writeStream.format("pykaproducer")
        .option("kafka.bootstrap.servers", arguments["servers"])
        .option("topic", arguments["topic"])
        .option("checkpointLocation", arguments["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    while query.isActive and not sign.exists():
        query.awaitTermination(0.2)
    if query.isActive:
        print("in the middle of batch 2", flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
