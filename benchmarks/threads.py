"""Throughput of several threads that send through one producer, with and without the GIL.

Each round runs each interpreter with each number of threads. All of them send the same number of
messages, with a callback for each, and the time until the last ``send()`` has returned and until
all messages are delivered is measured. Each interpreter needs the package's dependencies, and its
kernel in this directory::

    python -m benchmarks threads --pythons python3.13 python3.13t

With ``--encode`` each thread encodes a record as JSON for each message, as programs do that have
something to send.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import machine, options, payloads, report
from benchmarks.child import Parent, RunFailed
from benchmarks.report import Column
from benchmarks.runner import Measures, Session, in_program

if TYPE_CHECKING:
    from pykaproducer.testing import KafkaCluster

HELP = "several threads that send through one producer, with and without the GIL"

COLUMNS = (
    Column("accepted_per_s", "accepted, M messages/s", unit=1e6),
    Column("messages_per_s", "delivered, M messages/s", unit=1e6),
    Column("cpu_us", "CPU us/message"),
)

_WARM_UP = 1_000
_LIMIT = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pythons", nargs="+", default=[sys.executable], metavar="PYTHON")
    parser.add_argument("--threads", type=options.positive, nargs="+", default=[1, 2, 4])
    parser.add_argument("--stage-threads", nargs="+", default=["shared", "own"])
    parser.add_argument("--messages", type=options.positive, default=600_000, help="%(default)s")
    parser.add_argument(
        "--encode", action="store_true", help="encode a record as JSON for each message"
    )
    parser.add_argument("--partitions", type=options.positive, default=12, help="%(default)s")
    parser.add_argument("--rounds", type=options.positive, default=3, help="%(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file")


def check(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    for python in arguments.pythons:
        if shutil.which(python) is None:
            parser.error(f"there is no Python {python}")


def run(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    """Run all cases, print the table, and return the exit status."""
    from pykaproducer.testing import KafkaCluster

    cluster = KafkaCluster()
    pythons = {version_of(python): python for python in arguments.pythons}
    names = [f"{version}, {count} threads" for version in pythons for count in arguments.threads]
    session = Session(names, arguments.rounds, cluster)
    with cluster:
        for stage_threads in arguments.stage_threads:
            measure = partial(_one_run, arguments, cluster, stage_threads, pythons)
            session.alternate(f"stage_threads={stage_threads}", measure, warm_up_rounds=1)
    description = {
        "benchmark": "threads",
        "title": f"threads: {HELP}",
        **machine.describe(["python", "-m", "benchmarks", *words], []),
    }
    print(machine.headline(description), end="\n\n")
    print(report.tables(session.runs, names, COLUMNS))
    print(f"\n{report.quietness(session.runs)}")
    if arguments.json is not None:
        report.write_json(arguments.json, description, session.runs, names, COLUMNS)
    return 1 if any(run.failure is not None for run in session.runs) else 0


def version_of(python: str) -> str:
    """Return the version of an interpreter, such as 3.13t."""
    code = (
        "import sys, sysconfig; free = bool(sysconfig.get_config_var('Py_GIL_DISABLED'));"
        "print('%d.%d' % sys.version_info[:2] + 't' * free)"
    )
    return subprocess.run(
        [python, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


def _one_run(
    arguments: argparse.Namespace,
    cluster: KafkaCluster,
    stage_threads: str,
    pythons: Mapping[str, str],
    client: str,
) -> Measures:
    version, threads = client.split()[0].rstrip(","), client.split()[1]
    with options.fresh_topic(cluster, arguments.partitions) as topic:
        job = {
            "servers": cluster.bootstrap_servers,
            "topic": topic,
            "threads": int(threads),
            "messages": arguments.messages,
            "stage_threads": stage_threads,
            "encode": arguments.encode,
            "limit": _LIMIT,
        }
        words = ["-P", "-m", "benchmarks.child", "benchmarks.threads", json.dumps(job)]
        command = ["env", f"PYTHONPATH={Path(__file__).parents[1]}", pythons[version], *words]
        return in_program(command, limit=_LIMIT)


# In the fresh process


def measure(job: Mapping[str, Any], parent: Parent) -> Measures:
    from pykaproducer import Producer

    values = payloads.text_values(100)
    records = [
        {"number": n, "text": value.decode("utf-8", "ignore")} for n, value in enumerate(values)
    ]
    each = job["messages"] // job["threads"]
    failed: list[object] = []
    start = threading.Barrier(job["threads"] + 1)

    def on_delivery(error: object, _delivery: object) -> None:
        if error is not None:
            failed.append(error)

    def send() -> None:
        start.wait()
        topic, count = job["topic"], len(values)
        if job["encode"]:
            for number in range(each):
                value = json.dumps(records[number % count]).encode()
                producer.send(topic, value, on_delivery=on_delivery)
            return
        for number in range(each):
            producer.send(topic, values[number % count], on_delivery=on_delivery)

    with Producer(bootstrap_servers=job["servers"], stage_threads=job["stage_threads"]) as producer:
        for _ in range(_WARM_UP):
            producer.send(job["topic"], values[0], on_delivery=on_delivery)
        producer.flush(_LIMIT)
        threads = [threading.Thread(target=send) for _ in range(job["threads"])]
        for thread in threads:
            thread.start()
        cpu = sum(os.times()[:2])
        start.wait()
        begun = time.perf_counter()
        for thread in threads:
            thread.join()
        accepted = time.perf_counter() - begun
        producer.flush(_LIMIT)
        delivered = time.perf_counter() - begun
        cpu = sum(os.times()[:2]) - cpu
    if failed:
        raise RunFailed(f"{len(failed)} messages failed: {failed[0]}")
    sent = each * job["threads"]
    return {
        "accepted_per_s": sent / accepted,
        "messages_per_s": sent / delivered,
        "cpu_us": cpu / sent * 1e6,
    }
