"""Kafka's own Java producer, run by Kafka's own ``ProducerPerformance``.

For transactions it is run by ``java_transactions.py``.

It takes its values from a file, at random, and calls a callback for each message. It sends no keys.
Its figures are those that it prints for the messages after the warm-up, until the producer is
closed. The processor time is its process's from the first message on: it excludes the start of Java
and includes its compiler.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import payloads
from benchmarks.child import RunFailed
from benchmarks.peers.peer import Feature, Unavailable
from benchmarks.process import cpu_of_process, peak_of_process, threads
from benchmarks.runner import Measures, calibrated, last_of, watched

_TOOL = "org.apache.kafka.tools.ProducerPerformance"
#: Not contained in any value, as they are text.
_DELIMITER = "\x1e"
_FETCH_TIMEOUT = 900
#: Megabytes of heap in addition to the producer's buffer: Kafka's script gives it 512 in all.
_HEAP = 256

_SENT = re.compile(r"^(\d+) steady state records sent, ([\d.]+) records/sec")


class Java:
    lacks = frozenset({Feature.KEYS, Feature.TOPICS})

    def __init__(self) -> None:
        self._java = Path()
        self._jars: list[Path] = []

    def prepare(self) -> None:
        from pykaproducer.testing import ClusterError, _jars

        try:
            self._java = _jars.java()
        except ClusterError as error:
            raise Unavailable(f"java: {error}") from error
        self._jars = _tools()

    def ready(self) -> bool:
        """Return whether its jars have been downloaded before and it can run at once."""
        return _read_listing(_listing()) is not None

    def version(self) -> str:
        from pykaproducer.testing import _jars

        return f"{_jars.KAFKA_VERSION} (Java {_jars.java_version(_jars.java())})"

    def send(self, job: Mapping[str, Any], limit: float) -> Measures:
        with tempfile.TemporaryDirectory(prefix="pykaproducer-benchmark-") as directory:
            values = Path(directory, "values")
            # It reads UTF-8, and a value may have been cut in the middle of a character.
            texts = (
                value.decode("ascii", "replace").replace("\N{REPLACEMENT CHARACTER}", "?")
                for value in payloads.text_values(job["size"])
            )
            values.write_text(_DELIMITER.join(texts))
            command = self._command(job, values)
            return calibrated(lambda: self._run(command, job, limit))

    def _command(self, job: Mapping[str, Any], values: Path) -> list[str]:
        properties = [
            f"{name}={value}" for name, value in producer_properties(job["settings"]).items()
        ]
        buffer = job["settings"]["buffer_memory"] or 0
        return [
            str(self._java),
            f"-Xmx{_HEAP + max(_HEAP, buffer // 2**20)}m",
            "-XX:+UseG1GC",
            "-XX:-UsePerfData",
            "--enable-native-access=ALL-UNNAMED",
            "-Duser.language=en",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            *("-cp", os.pathsep.join(map(str, self._jars)), _TOOL),
            *("--topic", job["topics"][0]),
            *("--num-records", str(job["messages"] + job["warm_up"])),
            *("--warmup-records", str(job["warm_up"])),
            *("--throughput", "-1"),
            *("--payload-file", str(values)),
            *("--payload-delimiter", _DELIMITER),
            *("--command-property", *properties),
        ]

    def _run(self, command: list[str], job: Mapping[str, Any], limit: float) -> Measures:
        with tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment()
            )
            with watched(process, limit) as overdue:
                seen = _attend(process)
            errors.seek(0)
            text = "\n".join([*seen.lines, *errors.read().splitlines()])
        if overdue.is_set():
            raise RunFailed(f"no end within {limit:.0f} s; tracebacks of its threads:\n{text}")
        if process.returncode != 0:
            raise RunFailed(f"the process ended with status {process.returncode}:\n{last_of(text)}")
        return _measures(seen, job, text)


@dataclass
class _Seen:
    """Its output, and the resources used by its process at that time."""

    lines: list[str] = field(default_factory=list)
    #: Processor seconds when the first message was about to be sent, and at the end.
    started: float | None = None
    ended: float | None = None
    peak: int | None = None
    threads: int | None = None


def _attend(process: subprocess.Popen[str]) -> _Seen:
    assert process.stdout is not None
    seen = _Seen()
    for line in process.stdout:
        seen.lines.append(line.rstrip())
        if line.startswith("Warmup first"):
            seen.started = cpu_of_process(process.pid)
        elif " records sent, " in line:
            seen.ended = cpu_of_process(process.pid)
            # None if it has ended: the previous values are kept.
            seen.peak = peak_of_process(process.pid) or seen.peak
            seen.threads = threads(process.pid) or seen.threads
    return seen


def _measures(seen: _Seen, job: Mapping[str, Any], text: str) -> Measures:
    found = [match for line in seen.lines if (match := _SENT.match(line))]
    if not found or int(found[-1][1]) != job["messages"]:
        raise RunFailed(f"not every message was delivered; its output:\n{last_of(text)}")
    cpu = None
    if seen.started is not None and seen.ended is not None:
        cpu = (seen.ended - seen.started) / (job["messages"] + job["warm_up"]) * 1e6
    return {
        "messages_per_s": float(found[-1][2]),
        "cpu_us": cpu,
        "peak_rss": seen.peak,
        "threads": seen.threads,
    }


def environment() -> dict[str, str]:
    """Return the environment without what would change Java's behaviour, or add to its output."""
    unwanted = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
    return {name: value for name, value in os.environ.items() if name not in unwanted}


def producer_properties(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings by Java's names; those that are None stay at their defaults."""
    idempotence, codec = settings["idempotence"], settings["compression"]
    return {
        name: str(value)
        for name, value in {
            "bootstrap.servers": settings["bootstrap_servers"],
            "acks": settings["acks"],
            "enable.idempotence": None if idempotence is None else str(idempotence).lower(),
            "compression.type": codec,
            f"compression.{codec}.level": settings["compression_level"],
            "linger.ms": None if settings["linger_ms"] is None else round(settings["linger_ms"]),
            "batch.size": settings["batch_size"],
            "buffer.memory": settings["buffer_memory"],
            "max.block.ms": settings["max_block_ms"],
            "max.in.flight.requests.per.connection": settings["max_in_flight"],
            "transactional.id": settings["transactional_id"],
        }.items()
        if value is not None
    }


# Its jars ------------------------------------------------------------------------------------


def _endpoint() -> str:
    """Return the broker's endpoint (``testing/_jars.py``), with the tools."""
    from pykaproducer.testing import _jars

    first, *others = _jars.ENDPOINT.split("+")
    return "+".join((first.replace("kafka_2.13", "kafka-tools"), *others))


def _tools() -> list[Path]:
    """Return the class path of Kafka's tools; downloaded at the first call, cached afterwards."""
    listing = _listing()
    jars = _read_listing(listing)
    if jars is None:
        print("fetching Kafka's tools, about 45 MB, once", file=sys.stderr)
        jars = _fetch()
        listing.parent.mkdir(parents=True, exist_ok=True)
        listing.write_text(json.dumps({"endpoint": _endpoint(), "jars": list(map(str, jars))}))
    return jars


def _listing() -> Path:
    from pykaproducer.testing import _jars

    return _jars.cache_directory() / f"kafka-tools-{_jars.KAFKA_VERSION}.json"


def _read_listing(listing: Path) -> list[Path] | None:
    try:
        content = json.loads(listing.read_text())
    except (OSError, ValueError):
        return None
    jars = [Path(jar) for jar in content["jars"]]
    usable = content["endpoint"] == _endpoint() and all(jar.exists() for jar in jars)
    return jars if usable else None


def _fetch() -> list[Path]:
    from pykaproducer.testing import _jars

    if importlib.util.find_spec("jgo") is None:
        raise Unavailable('java: jgo is not installed: pip install "pykaproducer[testing]"')
    script = Path(_jars.__file__).with_name("_resolve.py")
    with tempfile.NamedTemporaryFile("r") as output:
        # -P: nothing is imported from the script's directory.
        command = [sys.executable, "-P", str(script), _endpoint(), output.name]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_FETCH_TIMEOUT, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise Unavailable(
                f"java: the download of Kafka's tools took longer than {_FETCH_TIMEOUT} s"
            ) from error
        if done.returncode != 0:
            reason = "\n".join(done.stderr.strip().splitlines()[-3:])
            raise Unavailable(f"java: could not download Kafka's tools; output of jgo:\n{reason}")
        return [Path(path) for path in json.load(output)]
