"""Spark: cached rows of a DataFrame, written to a topic by our sink and by Spark's own.

Each sink has a separate application, which stays alive: they alternate, write by write. A row has a
key of 16 bytes and a value of 100. Before the rounds both write the same keys, to check whether
each key is in the same partition.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import combinations, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import machine, options, readback, report
from benchmarks.child import RunFailed
from benchmarks.neighbours import Watch
from benchmarks.peers import Unavailable, spark, spark_jars
from benchmarks.process import cpu_of_process
from benchmarks.report import Column
from benchmarks.runner import CALIBRATION, Measures, Run, Session, calibrated
from benchmarks.send import named

if TYPE_CHECKING:
    from pykaproducer.testing import KafkaCluster

HELP = "rows per second and processor time of writing a DataFrame"

COLUMNS = (
    Column("rows_per_s", "M rows/s", unit=1e6),
    Column("wall_ms", "ms/write", ".0f", compared=False),
    Column("worker_us", "Python workers, CPU us/row", compared=False),
    Column("sink_us", "of that, the sink", compared=False),
    Column("jvm_us", "JVM, CPU us/row"),
    Column("broker_us", "broker, CPU us/row"),
    Column("all_us", "all, CPU us/row"),
    Column("planner_ms", "planners, CPU ms", ".0f", compared=False),
)

#: The seconds for a write: this, and one more per that many rows.
_LIMIT, _SLOWEST = 120.0, 20_000
#: The format of a sink that only counts (``peers/spark_count.py``).
COUNTING = "counting"
#: Milliseconds without a message after which no more are expected.
_READ_MS = 20_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=options.positive, default=2_000_000, help="%(default)s")
    parser.add_argument(
        "--partitions",
        type=options.positive,
        nargs="+",
        default=[4],
        metavar="N",
        help="partitions of the topic, one case for each number; default: 4",
    )
    parser.add_argument("--rounds", type=options.positive, default=7, help="%(default)s")
    parser.add_argument(
        "--warm-up-rounds", type=int, default=8, help="initial rounds that do not count; default: 8"
    )
    parser.add_argument("--no-jvm", action="store_true", help="measure only our sink")
    parser.add_argument(
        "--exactly-once", action="store_true", help="measure our sink with exactlyOnce, too"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file")
    group = parser.add_argument_group("Spark, the same for both sinks")
    group.add_argument("--master", default="local[2]", help="%(default)s")
    group.add_argument(
        "--tasks",
        type=options.positive,
        default=4,
        help="tasks per write (partitions of the rows); default: 4",
    )
    group.add_argument("--memory", default="3g", help="memory of each JVM; default: %(default)s")
    group.add_argument(
        "--conf",
        nargs="+",
        default=[],
        type=partial(_assignment, "spark."),
        metavar="spark.NAME=VALUE",
        help="configuration of the sessions",
    )
    group.add_argument(
        "--set",
        nargs="+",
        default=[],
        type=partial(_assignment, "kafka."),
        metavar="kafka.NAME=VALUE",
        help="options of the write; default: kafka.acks=all, otherwise each sink's own defaults",
    )


def _assignment(prefix: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.startswith(prefix):
        raise argparse.ArgumentTypeError(f"must be {prefix}NAME=VALUE, not {text}")
    return name, value


def check(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Prepare everything, including the jars of Spark's sink; a missing one ends the command."""
    try:
        arguments.jars = spark.prepare(_sinks(arguments))
    except Unavailable as error:
        parser.error(str(error))


def run(
    arguments: argparse.Namespace, words: Sequence[str], cluster: KafkaCluster | None = None
) -> int:
    """Measure on *cluster*, or on a new one, print, and return the exit status."""
    from pykaproducer.testing import KafkaCluster

    sinks = _sinks(arguments)
    description = _description(arguments, words, sinks)
    session = Session(sinks, arguments.rounds, cluster or KafkaCluster())
    try:
        complaint = _measure(arguments, session)
    except RunFailed as error:
        print(f"FAILED: an application did not start: {error}")
        return 1
    print(machine.headline(description), end="\n\n")
    print(rounds(session.runs, sinks), end="\n\n")
    print(report.tables(session.runs, sinks, COLUMNS))
    if complaint is not None:
        print(f"\nFAILED: the same key in the same partition: {complaint}")
    elif spark.JVM in sinks:
        print("\nEach key is in the same partition with both.")
    print(f"\n{report.quietness(session.runs)}")
    if arguments.json is not None:
        description["same_partitions"] = complaint or spark.JVM in sinks or None
        report.write_json(arguments.json, description, session.runs, sinks, COLUMNS)
    failed = any(run.failure is not None for run in session.runs)
    return 1 if failed or complaint is not None else 0


def _sinks(arguments: argparse.Namespace) -> list[str]:
    others = {spark.JVM: not arguments.no_jvm, spark.ONCE: arguments.exactly_once}
    return [spark.OURS, *(sink for sink, wanted in others.items() if wanted)]


def _description(
    arguments: argparse.Namespace, words: Sequence[str], sinks: Sequence[str]
) -> dict[str, Any]:
    import importlib.metadata

    found = machine.describe(["python", "-m", "benchmarks", *words], [spark.OURS])
    if spark.JVM in sinks:
        found["clients"][spark.JVM] = spark_jars.version(arguments.jars)
    found["clients"]["PySpark"] = importlib.metadata.version("pyspark")
    return {"benchmark": "spark", "title": f"spark: {HELP}", **found}


def _measure(arguments: argparse.Namespace, session: Session) -> str | None:
    """Run all rounds, and return the difference between the keys' partitions, if any."""
    with session.cluster as cluster, ExitStack() as kept:
        load = spark.Load(
            arguments.rows,
            arguments.tasks,
            arguments.master,
            arguments.memory,
            {"kafka.bootstrap.servers": cluster.bootstrap_servers, "kafka.acks": "all"}
            | dict(arguments.set),
            dict(arguments.conf),
        )
        applications = {
            sink: kept.enter_context(spark.Application(sink, load, arguments.jars))
            for sink in session.clients
        }
        complaint = _compare_places(cluster, applications, arguments.partitions[0])
        warm_up_rounds = arguments.warm_up_rounds
        for partitions in arguments.partitions:
            session.alternate(
                f"{arguments.rows:,} rows, {arguments.tasks} tasks, {named(partitions)}",
                partial(_one_write, arguments.rows, partitions, cluster, applications),
                warm_up_rounds=warm_up_rounds,
            )
            # The broker and the applications stay warm.
            warm_up_rounds = 0
    session.runs[:] = map(_with_its_own_watch, session.runs)
    return complaint


def _with_its_own_watch(run: Run) -> Run:
    """Replace the session's measure of other work, which counts the application, by the write's."""
    if "other_cores" not in run.measures:
        return run
    rest = {name: value for name, value in run.measures.items() if name != "other_cores"}
    return replace(run, measures=rest, other_cores=run.measures["other_cores"])


def _one_write(
    rows: int,
    partitions: int,
    cluster: KafkaCluster,
    applications: Mapping[str, spark.Application],
    sink: str,
) -> Measures:
    application = applications[sink]
    limit = _LIMIT + rows / _SLOWEST
    # A new topic each time, deleted with its files: no write finds the last one's in memory.
    with options.fresh_topic(cluster, partitions) as topic:
        readback.wait_until_served(cluster, [topic], partitions)
        found = calibrated(lambda: _watched_write(cluster, application, topic, limit))
        if sink == spark.ONCE:
            readback.check_committed(cluster, topic, rows)
        else:
            readback.check_log(cluster, [topic], partitions, rows)
    counted = application.write("rows", "", limit, sink=COUNTING) if sink == spark.OURS else {}
    return measures(rows, found, counted.get("workers"))


def _watched_write(
    cluster: KafkaCluster, application: spark.Application, topic: str, limit: float
) -> Measures:
    brokers = [broker.pid for broker in cluster.brokers]
    # The other application is idle; any processor time it uses counts as other work.
    watch = Watch([*brokers, *application.processes()])
    before = sum(cpu_of_process(pid) or 0.0 for pid in brokers)
    found = application.write("rows", topic, limit)
    used = sum(cpu_of_process(pid) or 0.0 for pid in brokers) - before
    return {**found, "broker": used, "other_cores": watch.other_cores()}


def measures(rows: int, found: Mapping[str, Any], counted: float | None = None) -> Measures:
    """Convert the seconds of one write (``wall``, and of processors) to the table's units.

    *counted*: the workers' processor time with a sink that only counts the rows.
    """
    jvm, workers, planners = found["jvm"], found["workers"], found["planners"]
    broker, each = found["broker"], 1e6 / rows
    unknown = workers is None
    return {
        "rows_per_s": rows / found["wall"],
        "wall_ms": found["wall"] * 1e3,
        "worker_us": None if unknown else workers * each,
        "sink_us": None if unknown or counted is None else (workers - counted) * each,
        "jvm_us": jvm * each,
        "broker_us": broker * each,
        "all_us": None if unknown else (workers + planners + jvm + broker) * each,
        "planner_ms": planners * 1e3,
        **{key: found[key] for key in ("other_cores", CALIBRATION)},
    }


# The partitions of the keys


def _compare_places(
    cluster: KafkaCluster, applications: Mapping[str, spark.Application], partitions: int
) -> str | None:
    """Check that both sinks write each key to the same partition; return the difference, if any."""
    if spark.JVM not in applications:
        return None
    places: dict[str, dict[bytes, set[int]]] = {}
    for sink in (spark.OURS, spark.JVM):
        application = applications[sink]
        with options.fresh_topic(cluster, partitions) as topic:
            readback.wait_until_served(cluster, [topic], partitions)
            try:
                application.write("keys", topic, _LIMIT)
                readback.check_log(cluster, [topic], partitions, application.keys)
            except RunFailed as error:
                return f"{sink}: {error}"
            places[sink] = _places(cluster, topic, partitions, application.keys)
    return difference(places[spark.OURS], places[spark.JVM])


def difference(ours: Mapping[bytes, set[int]], theirs: Mapping[bytes, set[int]]) -> str | None:
    """Return the first key with another partition, and the number of such keys."""
    wrong = sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))
    if not wrong:
        return None
    key = wrong[0]
    return (
        f"{len(wrong)} of {len(theirs)} keys are elsewhere; {key.hex() or '(empty)'} is in "
        f"{sorted(ours.get(key, ()))} and with {spark.JVM} in {sorted(theirs.get(key, ()))}"
    )


def _places(
    cluster: KafkaCluster, topic: str, partitions: int, count: int
) -> dict[bytes, set[int]]:
    """Return the partitions of each key's messages, read with kafka-python's consumer."""
    from kafka import KafkaConsumer, TopicPartition

    found: dict[bytes, set[int]] = {}
    consumer = KafkaConsumer(
        bootstrap_servers=cluster.bootstrap_servers,
        auto_offset_reset="earliest",
        consumer_timeout_ms=_READ_MS,
    )
    try:
        consumer.assign([TopicPartition(topic, i) for i in range(partitions)])
        for record in islice(consumer, count):
            found.setdefault(record.key, set()).add(record.partition)
    finally:
        consumer.close()
    return found


# Round by round


def rounds(runs: Sequence[Run], sinks: Sequence[str]) -> str:
    """Return a line for each counted round: thousands of rows per second, and the ratio."""
    counted = [run for run in runs if run.round > 0]
    head = [
        *(f"{sink}, k rows/s" for sink in sinks),
        *(f"{one} / {other}" for one, other in combinations(sinks, 2)),
    ]
    lines = []
    for case, number in dict.fromkeys((run.case, run.round) for run in counted):
        found = {run.client: run for run in counted if (run.case, run.round) == (case, number)}
        speeds = [found[sink].measures.get("rows_per_s") for sink in sinks]
        line = ["-" if speed is None else f"{speed / 1e3:.0f}" for speed in speeds]
        for one, other in combinations(speeds, 2):
            line.append("-" if one is None or other is None else f"{one / other:.2f}")
        if number == 1:
            lines.append([case, *head])
        lines.append([f"  round {number}", *line])
    width = max((len(line[0]) for line in lines), default=0) + 2
    return "\n".join(
        (first.ljust(width) + "".join(cell.ljust(32) for cell in rest)).rstrip()
        for first, *rest in lines
    )
