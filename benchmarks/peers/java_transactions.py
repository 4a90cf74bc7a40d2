"""Kafka's Java producer in a loop of transactions: a small program, compiled once.

``ProducerPerformance`` commits by time, and not after a number of messages. The program is run with
the jars of the broker, which include the producer. It is kept in the user's cache, under a name
that changes with its source and with Kafka.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import payloads
from benchmarks.peers.java import environment, producer_properties
from benchmarks.peers.peer import Feature, Unavailable
from benchmarks.runner import Measures, in_program

_SOURCE = Path(__file__).parent / "java-transactions" / "Transactions.java"
_COMPILE_TIMEOUT = 120
_HEAP = 768


class JavaTransactions:
    """The program, and how it is run: a peer for the benchmark of transactions only."""

    lacks: frozenset[Feature] = frozenset()

    def __init__(self) -> None:
        self._java = Path()
        self._class_path = ""

    def prepare(self) -> None:
        """Compile it, unless that has been done."""
        from pykaproducer.testing import ClusterError, _jars

        try:
            self._java = _jars.java()
            jars = [str(path) for path in _jars.kafka_jars()]
            made = _directory()
            if not made.exists():
                print("compiling the Java program, once", file=sys.stderr)
                _compile(_jars.java_with("jdk.compiler"), jars, made)
        except ClusterError as error:
            raise Unavailable(f"java: {error}") from error
        self._class_path = os.pathsep.join([str(made), *jars])

    def ready(self) -> bool:
        """Return whether it has been compiled before and can run at once."""
        return _directory().exists()

    def version(self) -> str:
        from pykaproducer.testing import _jars

        return f"{_jars.KAFKA_VERSION} (Java {_jars.java_version(self._java)})"

    def send(self, job: Mapping[str, Any], limit: float) -> Measures:
        """Run it once in a fresh process."""
        settings = producer_properties(job["settings"])
        with tempfile.TemporaryDirectory(prefix="pykaproducer-benchmark-") as directory:
            values, keys = Path(directory, "values"), Path(directory, "keys")
            values.write_bytes(b"".join(payloads.text_values(job["size"])))
            content = {
                "topic": job["topics"][0],
                "messages": job["messages"],
                "seconds": job["seconds"],
                "warmUpSeconds": job["warm_up_seconds"],
                "callback": str(job["callback"]).lower(),
                "values": values,
                "size": job["size"],
                **{f"producer.{name}": value for name, value in settings.items()},
            }
            if job["group"] is not None:
                content["group"] = job["group"]
            if job["keyed"]:
                made = payloads.keys()
                keys.write_bytes(b"".join(made))
                content |= {"keys": keys, "keySize": len(made[0])}
            properties = Path(directory, "properties")
            properties.write_text("".join(f"{name}={value}\n" for name, value in content.items()))
            command = [*self._command(), str(properties)]
            return in_program(command, limit=limit, environment=environment())

    def _command(self) -> list[str]:
        return [
            str(self._java),
            f"-Xmx{_HEAP}m",
            "-XX:+UseG1GC",
            "-XX:-UsePerfData",
            "--enable-native-access=ALL-UNNAMED",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            *("-cp", self._class_path, "Transactions"),
        ]


def _directory() -> Path:
    from pykaproducer.testing import _jars

    content = hashlib.sha256(_jars.ENDPOINT.encode() + b"\0" + _SOURCE.read_bytes())
    return _jars.cache_directory() / "peers" / f"java-transactions-{content.hexdigest()[:16]}"


def _compile(java: Path, jars: list[str], made: Path) -> None:
    made.parent.mkdir(parents=True, exist_ok=True)
    # Made beside it and moved: other processes see a complete program or none.
    with tempfile.TemporaryDirectory(dir=made.parent) as directory:
        target = Path(directory, "classes")
        command = [
            *(str(java), "-m", "jdk.compiler/com.sun.tools.javac.Main", "--release", "17"),
            *("-Xlint:all", "-cp", os.pathsep.join(jars), "-d", str(target), str(_SOURCE)),
        ]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                env=environment(),
                timeout=_COMPILE_TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"java: javac did not end within {_COMPILE_TIMEOUT} s") from error
        if done.returncode != 0:
            last = "\n".join(done.stderr.strip().splitlines()[-5:])
            raise Unavailable(f"java: {_SOURCE.name} could not be compiled:\n{last}")
        os.replace(target, made)
