"""Configuration and command line of a broker of the test cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

HOST = "127.0.0.1"

#: Environment variables that would change the behaviour or the output of a broker.
_UNWANTED = ("CLASSPATH", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")

#: The options on which a class-data archive depends: they must be the same when it is made.
ARCHIVED_OPTIONS = (
    "-XX:+UseG1GC",
    # The compression libraries are native; without this option Java warns about each.
    "--enable-native-access=ALL-UNNAMED",
)


class Ports(NamedTuple):
    """The two ports of a broker: for clients and other brokers, and for controllers."""

    client: int
    controller: int


def server_properties(
    node_id: int, ports: Sequence[Ports], data: Path, extra: Mapping[str, str]
) -> str:
    """Return server.properties for one of ``len(ports)`` combined brokers/controllers."""
    mine = ports[node_id]
    replicas = str(min(3, len(ports)))
    properties = {
        "process.roles": "broker,controller",
        "node.id": str(node_id),
        "controller.quorum.voters": ",".join(
            f"{node}@{HOST}:{port.controller}" for node, port in enumerate(ports)
        ),
        # Only processes on this machine can connect.
        "listeners": f"CLIENT://{HOST}:{mine.client},CONTROLLER://{HOST}:{mine.controller}",
        "advertised.listeners": f"CLIENT://{HOST}:{mine.client}",
        "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "CLIENT",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(data),
        # Replicate Kafka's internal topics to as many brokers as possible.
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "share.coordinator.state.topic.replication.factor": replicas,
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "min.insync.replicas": "1",
        # Do not wait for further members when a consumer joins its group.
        "group.initial.rebalance.delay.ms": "0",
        # Few partitions, for a fast start.
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.num.partitions": "4",
        # Tests may write messages with old timestamps, which must not be deleted.
        "log.retention.ms": "-1",
        # A broker that is killed or stopped loses its leaderships after 5 s instead of 9.
        "broker.session.timeout.ms": "5000",
        "broker.heartbeat.interval.ms": "500",
        # Without topics to change, the controllers write an empty record every 5 s instead of every
        # 0.5 s: a quarter of the processor time of an idle broker.
        "metadata.max.idle.interval.ms": "5000",
        **extra,
    }
    return "".join(f"{name}={_escape(value)}\n" for name, value in properties.items())


def behind_proxies(ports: Ports, proxied: Sequence[tuple[int, int]]) -> dict[str, str]:
    """Return properties that add a listener for each pair of its port and the proxy's port."""
    names = [f"PROXIED{number}" for number in range(len(proxied))]
    pairs = list(zip(names, proxied, strict=True))
    added = "".join(f"{name}://{HOST}:{port}," for name, (port, _) in pairs)
    advertised = "".join(f",{name}://{HOST}:{proxy}" for name, (_, proxy) in pairs)
    return {
        "listeners": f"CLIENT://{HOST}:{ports.client},{added}CONTROLLER://{HOST}:{ports.controller}",
        "advertised.listeners": f"CLIENT://{HOST}:{ports.client}{advertised}",
        "listener.security.protocol.map": "".join(f"{name}:PLAINTEXT," for name in names)
        + "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    }


def on_disks(disks: Sequence[Path]) -> dict[str, str]:
    """Return properties that spread partitions over *disks*; the first contains the metadata."""
    return {
        "log.dirs": ",".join(map(str, disks)),
        "metadata.log.dir": str(disks[0]),
        # A failed disk is detected at the next checkpoint.
        "replica.high.watermark.checkpoint.interval.ms": "1000",
    }


def _escape(value: str) -> str:
    """Escape a value for a Java properties file, which is Latin-1 with backslash escapes."""
    text = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    if text.startswith(" "):
        text = "\\" + text
    return "".join(char if " " <= char <= "~" else _utf16_escape(char) for char in text)


def _utf16_escape(char: str) -> str:
    units = char.encode("utf-16-be").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))


def command(
    java: Path,
    heap_mb: int,
    fast_start: bool,
    directory: Path,
    properties: Path,
    options: Sequence[str] = (),
) -> list[str]:
    """Return the command line of a broker; *options* are further ones for Java."""
    return [
        str(java),
        # Use only the quick compiler: half the processor time until ready, but half the maximum
        # throughput of the broker.
        *(["-XX:TieredStopAtLevel=1"] if fast_start else []),
        f"-Xms{heap_mb}m",
        f"-Xmx{heap_mb}m",
        *ARCHIVED_OPTIONS,
        "-XX:MaxGCPauseMillis=20",
        "-XX:+ExitOnOutOfMemoryError",
        # A killed broker must not leave files outside its directory.
        "-XX:-UsePerfData",
        f"-Djava.io.tmpdir={directory}",
        "-Djava.awt.headless=true",
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
        *options,
        "kafka.Kafka",
        str(properties),
    ]


def archive_command(java: Path, classes: Path) -> list[str]:
    """Return the command line that makes an archive of the listed *classes*, without its path."""
    return [
        str(java),
        *ARCHIVED_OPTIONS,
        "-XX:TieredStopAtLevel=1",
        "-Xshare:dump",
        f"-XX:SharedClassListFile={classes}",
    ]


def environment(jars: Sequence[Path]) -> dict[str, str]:
    """Return the environment of a broker; it contains the class path, which is very long."""
    inherited = {name: value for name, value in os.environ.items() if name not in _UNWANTED}
    return {**inherited, "CLASSPATH": os.pathsep.join(map(str, jars))}
