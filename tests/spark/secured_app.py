"""Write to a secured cluster from executors that are processes; run by test_security.py.

The working directory of the driver is not that of the executors.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

from tests._support.fixtures.spark import spark_session

ROWS = 400


def main(arguments: dict[str, str]) -> None:
    """Write the numbers below ROWS as a batch, and the lines of the input as a stream."""
    options = json.loads(arguments["options"])
    os.chdir(arguments.get("directory", "."))
    local = pathlib.Path(arguments["local"])
    events = local / "events"
    events.mkdir(parents=True)
    spark = spark_session(
        "local-cluster[2,1,1024]",
        local,
        **{
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": events.as_uri(),
            # A plain file, in which the test can search.
            "spark.eventLog.compress": "false",
        },
    )
    absent = arguments.get("absent")
    if absent is not None:
        assert pathlib.Path(absent).exists()
        seen = spark.range(2, numPartitions=2).mapInArrow(_exists(absent), "found boolean")
        assert [row.found for row in seen.collect()] == [False, False]
    df = spark.range(ROWS, numPartitions=2).selectExpr("CAST(id AS STRING) AS value")
    df.write.format("pykaproducer").options(**options).mode("append").save()
    query = (
        spark.readStream.text(arguments["input"])
        .writeStream.format("pykaproducer")
        .options(**json.loads(arguments.get("stream_options", arguments["options"])))
        .option("checkpointLocation", arguments["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


def _exists(path: str) -> Any:
    def task(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow

        for _ in batches:
            yield pyarrow.RecordBatch.from_pydict({"found": [os.path.exists(path)]})

    return task


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
