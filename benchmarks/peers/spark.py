"""Spark applications that stay alive: each in separate processes, with one sink.

They are asked to write, and answer with the measures of that write.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.child import RunFailed
from benchmarks.peers import spark_jars, spark_usage
from benchmarks.peers.peer import Unavailable
from benchmarks.runner import last_of

#: The name of each sink for ``format()``, ours first.
FORMATS = {
    "pykaproducer": "pykaproducer",
    "spark-sql-kafka": "kafka",
    "exactly-once": "pykaproducer",
}
OURS, JVM, ONCE = FORMATS
#: The options with which our sink writes exactly once.
_ONCE_OPTIONS = {"exactlyOnce": "true", "transactionalIdPrefix": "benchmark"}

#: The seconds to start a session with its rows in memory: this, and one more per that many rows.
_START, _SLOWEST = 600.0, 20_000
#: The seconds between requesting a thread dump and killing the process, and for its end.
_LAST_WORDS, _END = 3.0, 60.0


@dataclass(frozen=True)
class Load:
    """The data of an application, and the settings of its writes."""

    rows: int
    #: The number of partitions of the rows in Spark, which is the number of tasks of a write.
    tasks: int
    #: Spark's ``master``.
    master: str
    #: The memory of the JVM, which is driver and executor at once.
    memory: str
    #: The options of the write, the same for both sinks.
    options: Mapping[str, str]
    #: The configuration of the session.
    conf: Mapping[str, str] = field(default_factory=dict)


def prepare(sinks: Sequence[str]) -> list[Path]:
    """Prepare everything; return the jars of Spark's own sink, or raise :class:`Unavailable`."""
    install = 'pip install "pykaproducer[spark]"'
    for name in ("pyspark", "pyarrow"):
        if importlib.util.find_spec(name) is None:
            raise Unavailable(f"{name} is not installed: {install}")
    if importlib.util.find_spec("pykaproducer.spark") is None and OURS in sinks:
        raise Unavailable("this pykaproducer has no sink for Spark")
    spark_jars.check_java()
    return spark_jars.jars() if JVM in sinks else []


class Application:
    """A Spark application in separate processes, started by ``with``."""

    def __init__(self, sink: str, load: Load, jars: Sequence[Path]) -> None:
        self._sink = sink
        self._load = load
        self._jars = jars
        self._resources = ExitStack()
        #: The number of rows of the frame ``keys``, whose keys have many lengths.
        self.keys = 0
        self._jvm: int | None = None

    def __enter__(self) -> Application:
        with ExitStack() as resources:
            directory = resources.enter_context(
                # Spark may still be removing its own files there.
                tempfile.TemporaryDirectory(
                    prefix="pykaproducer-spark-", ignore_cleanup_errors=True
                )
            )
            # Opened for appending: it is read here while the application may still write.
            self._said = resources.enter_context(Path(directory, "said").open("a+"))
            job = json.dumps(self._job(directory))
            # -P and this path: the application and its workers import what this process would.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "benchmarks.peers.spark_app", job],
                env=environment(directory),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                text=True,
            )
            resources.callback(self._end, directory)
            answer = self._answer(_START + self._load.rows / _SLOWEST)
            self._jvm, self.keys = answer["jvm"], answer["keys"]
            self._resources = resources.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._resources.close()

    def write(
        self, frame: str, topic: str, limit: float, *, sink: str | None = None
    ) -> dict[str, float]:
        """Write one of its frames (``rows``, ``keys``) to a topic, and return the resources used.

        *sink*: a sink other than its own. Raises :class:`RunFailed`, and ends the application,
        after
        *limit* seconds.
        """
        request = {"frame": frame, "topic": topic, "sink": sink, "limit": limit + _LAST_WORDS}
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise RunFailed(self._epitaph()) from error
        return self._answer(limit)

    def processes(self) -> list[int]:
        """Return all processes that belong to it now."""
        return [p.pid for p in spark_usage.below(self._process.pid, spark_usage.running())]

    def _job(self, directory: str) -> dict[str, Any]:
        session = {
            "spark.master": self._load.master,
            "spark.driver.memory": self._load.memory,
            # Files that Java unpacks are deleted with the application.
            "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={directory}",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.local.dir": directory,
            "spark.sql.warehouse.dir": directory,
            **self._load.conf,
        }
        if self._sink == JVM:
            session["spark.jars"] = ",".join(map(str, self._jars))
        return {
            "format": FORMATS[self._sink],
            "options": {**self._load.options, **(_ONCE_OPTIONS if self._sink == ONCE else {})},
            "rows": self._load.rows,
            "tasks": self._load.tasks,
            "session": session,
        }

    def _answer(self, limit: float) -> dict[str, Any]:
        overdue = threading.Event()
        timer = threading.Timer(limit, self._kill, [overdue])
        timer.start()
        try:
            assert self._process.stdout is not None
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
            timer.join()
        if overdue.is_set():
            raise RunFailed(
                f"no end within {limit:.0f} s; tracebacks of its threads:\n{self._words()}"
            )
        if not line:
            raise RunFailed(self._epitaph())
        answer: dict[str, Any] = json.loads(line)
        if "failed" in answer:
            raise RunFailed(last_of(answer["failed"]))
        return answer

    def _kill(self, overdue: threading.Event) -> None:
        """Request Java's thread dump, and end everything: Java ends with its standard input."""
        overdue.set()
        if self._jvm is not None:
            _signal(self._jvm, signal.SIGQUIT)
        try:
            self._process.wait(_LAST_WORDS)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _epitaph(self) -> str:
        status = self._process.wait(_END)
        return f"the Spark application ended with status {status}:\n{last_of(self._words())}"

    def _words(self) -> str:
        self._said.seek(0)
        return self._said.read()

    def _end(self, directory: str) -> None:
        try:
            self._process.communicate(timeout=_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        # Java is no longer a child process if the application was killed, but it does end.
        deadline = time.monotonic() + _END
        while left := _started_for(directory):
            if time.monotonic() > deadline:
                for pid in left:
                    _signal(pid, signal.SIGKILL)
                return
            time.sleep(0.05)


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        # It has already ended, as intended.
        pass


def _started_for(directory: str) -> list[int]:
    """Return the Java processes with this directory in their command line."""
    found = spark_usage.running()
    return [p.pid for p in found if any(directory in word for word in p.command)]


def environment(directory: str) -> dict[str, str]:
    """Return the environment of an application that keeps its files in *directory*."""
    # They would change Java's behaviour, or select another Spark than PySpark's own.
    unwanted = (
        "JAVA_TOOL_OPTIONS",
        "JDK_JAVA_OPTIONS",
        "_JAVA_OPTIONS",
        "SPARK_HOME",
        "SPARK_CONF_DIR",
    )
    kept = {name: value for name, value in os.environ.items() if name not in unwanted}
    return kept | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        # The files by which PySpark finds its Java.
        "TMPDIR": directory,
    }
