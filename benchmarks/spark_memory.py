"""Spark, memory: the use of the Python workers while the broker is stopped during a write.

The broker is stopped with SIGSTOP once rows of the write are in the log, and continues after some
seconds. Every row must be there in the end. The reported figure is the peak resident memory of any
Python worker, as recorded by the system.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from benchmarks import options, readback
from benchmarks.child import RunFailed
from benchmarks.peers import Unavailable, spark, spark_usage
from benchmarks.process import peak_of_process

if TYPE_CHECKING:
    from pykaproducer.testing import KafkaCluster

HELP = "memory of the Python workers while the broker is stopped during a write"

#: The seconds for the write besides the pause: this, and one more per that many rows.
_LIMIT, _SLOWEST = 180.0, 20_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=options.positive, default=5_000_000, help="%(default)s")
    parser.add_argument("--pause", type=float, default=5.0, metavar="S", help="default: 5")
    parser.add_argument(
        "--partitions", type=options.positive, default=4, metavar="N", help="default: 4"
    )
    parser.add_argument(
        "--buffer-memory", type=options.positive, default=64, metavar="MIB", help="default: 64"
    )
    parser.add_argument("--master", default="local[2]", help="%(default)s")
    parser.add_argument(
        "--tasks", type=options.positive, default=4, help="tasks of the write; default: 4"
    )


def check(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    try:
        spark.prepare([spark.OURS])
    except Unavailable as error:
        parser.error(str(error))


def run(
    arguments: argparse.Namespace, words: Sequence[str], cluster: KafkaCluster | None = None
) -> int:
    """Measure, print, and return the exit status."""
    from pykaproducer.testing import KafkaCluster

    buffer = arguments.buffer_memory * options.MIB
    with cluster or KafkaCluster() as running:
        load = spark.Load(
            arguments.rows,
            arguments.tasks,
            arguments.master,
            "3g",
            {
                "kafka.bootstrap.servers": running.bootstrap_servers,
                "kafka.buffer.memory": str(buffer),
            },
        )
        try:
            with spark.Application(spark.OURS, load, []) as application:
                peaks = _peaks(arguments, running, application)
        except RunFailed as error:
            print(f"FAILED: {error}")
            return 1
    most, allowed = max(peaks.values()), 2 * buffer + 150_000_000
    print(f"{arguments.rows:,} rows, the broker stood still for {arguments.pause:g} s; all arrived")
    for pid, peak in sorted(peaks.items()):
        print(f"  Python worker {pid}: {peak / 1e6:.0f} MB at most")
    print(
        f"  {most / 1e6:.0f} MB; 2 x kafka.buffer.memory + 150 MB is {allowed / 1e6:.0f} MB: "
        f"{'kept' if most < allowed else 'NOT KEPT'}"
    )
    return 0 if most < allowed else 1


def _peaks(
    arguments: argparse.Namespace, cluster: KafkaCluster, application: spark.Application
) -> dict[int, int]:
    """Return the peak memory of each Python worker, in bytes."""
    partitions, limit = arguments.partitions, _LIMIT + arguments.rows / _SLOWEST
    found: dict[str, Any] = {}
    with options.fresh_topic(cluster, partitions) as topic:
        readback.wait_until_served(cluster, [topic], partitions)

        def write() -> None:
            try:
                application.write("rows", topic, limit)
            except RunFailed as error:
                found["failed"] = error

        writing = threading.Thread(target=write)
        writing.start()
        try:
            readback.wait_for_a_message(cluster, topic, partitions, limit)
            cluster.pause(0)
            if not writing.is_alive():
                raise found.get("failed") or RunFailed("the write ended before the broker stopped")
            time.sleep(arguments.pause)
            peaks = _workers(application)
        finally:
            cluster.resume(0)
            writing.join()
        if "failed" in found:
            raise found["failed"]
        readback.check_log(cluster, [topic], partitions, arguments.rows)
        return {pid: max(peak, _workers(application).get(pid, 0)) for pid, peak in peaks.items()}


def _workers(application: spark.Application) -> dict[int, int]:
    """Return the peak memory of each Python process of the executors, by process id."""
    own = set(application.processes())
    workers = [
        process.pid
        for process in spark_usage.running()
        if process.pid in own and process.command[-1] == "pyspark.worker"
    ]
    return {pid: peak_of_process(pid) or 0 for pid in workers}
