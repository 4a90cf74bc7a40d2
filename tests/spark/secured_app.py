"""Write to a secured cluster from executors that are processes; run by test_security.py."""

from __future__ import annotations

import json
import pathlib
import sys

from tests._support.fixtures.spark import spark_session

ROWS = 400


def main(arguments: dict[str, str]) -> None:
    """Write the numbers below ROWS as a batch, and the lines of the input as a stream."""
    options = json.loads(arguments["options"])
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
    df = spark.range(ROWS, numPartitions=2).selectExpr("CAST(id AS STRING) AS value")
    df.write.format("pykaproducer").options(**options).mode("append").save()
    query = (
        spark.readStream.text(arguments["input"])
        .writeStream.format("pykaproducer")
        .options(**options)
        .option("checkpointLocation", arguments["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
