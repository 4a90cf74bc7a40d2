"""Start: the time of the constructor and the first ``send()`` while the server is unreachable.

There are two cases: a port that refuses connections, and a server that accepts the connection and
never answers.
"""

from __future__ import annotations

import argparse
import socket
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from benchmarks import clients
from benchmarks.child import Parent
from benchmarks.clients import Settings
from benchmarks.report import Column
from benchmarks.runner import Measures, Session, in_fresh_process

PEERS = ("confluent-kafka", "kafka-python")

HELP = "time of the constructor and the first send() while the server cannot be reached"

COLUMNS = (
    Column("constructor_ms", "constructor, ms", ".2f", compared=False),
    Column("first_send_ms", "first send(), ms", ".2f", compared=False),
    Column("second_send_ms", "second send(), ms", ".3f", compared=False),
    Column("import_ms", "import, ms", ".0f"),
)

#: Only kafka-python waits in its constructor, half a minute; and then in send().
_LIMIT = 120.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    del parser


def run(arguments: argparse.Namespace, session: Session) -> None:
    for case, listening in (("connection refused", False), ("a silent server", True)):
        session.alternate(case, partial(_one_run, listening))


def _one_run(listening: bool, client: str) -> Measures:
    job = {"client": client, "listening": listening}
    return in_fresh_process("benchmarks.startup", job, limit=_LIMIT)


# In the fresh process


def measure(job: Mapping[str, Any], parent: Parent) -> Measures:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if job["listening"]:
            server.listen()
        settings = Settings(f"127.0.0.1:{server.getsockname()[1]}")
        moments = [time.perf_counter()]
        make = clients.factory(job["client"])
        moments.append(time.perf_counter())
        client = make(settings)
        moments.append(time.perf_counter())
        for _ in range(2):
            client.send("benchmark", b"value")
            moments.append(time.perf_counter())
        client.abandon()
    names = ("import_ms", "constructor_ms", "first_send_ms", "second_send_ms")
    return {name: (moments[i + 1] - moments[i]) * 1000 for i, name in enumerate(names)}
