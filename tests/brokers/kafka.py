"""One broker of a release of Kafka, and what is in its logs."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.record import MemoryRecords

from pykaproducer import Producer
from pykaproducer.testing import FaultProxy, _admin
from pykaproducer.testing._messages import MetadataRequest
from pykaproducer.testing._processes import GuardedProcesses, tick
from pykaproducer.testing._server import HOST, environment
from tests._support.consumer import close_member

from .releases import Release, properties

#: How long a broker or a reader may take (seconds); only a hang takes as long.
PATIENCE = 240.0


def wait_until(condition: Callable[[], object], failure: str) -> None:
    """Wait until *condition()* is true."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{failure}, after {PATIENCE:.0f} s")
        tick()


class Kafka:
    """A broker with two listeners: one for clients, and one that is reached through *proxy*.

    Its processes end with *processes*.
    """

    def __init__(self, release: Release, processes: GuardedProcesses, proxy: FaultProxy) -> None:
        self.release = release
        self.proxy = proxy
        self._processes = processes
        self._directory = processes.directory
        self._port, self._proxied_port, self._other_port = processes.reserve(3)
        self._environment = environment(release.jars())
        self._pid = 0
        proxy.target = HOST, self._proxied_port
        self.servers = f"{HOST}:{self._port}"

    def has(self, feature: str) -> bool:
        """Return whether the release has a feature of :data:`releases.SINCE`."""
        return self.release.has(feature)

    def producer(self, *, proxied: bool = False, **settings: Any) -> Producer:
        """Return a producer for it, through the proxy if *proxied*."""
        servers = self.proxy.address if proxied else self.servers
        return Producer(bootstrap_servers=servers, **{"retry_backoff_ms": 20, **settings})

    # The processes -------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the broker; before it ZooKeeper, or format its directory."""
        (self._directory / "broker.properties").write_text(properties(self._settings()))
        if self.release.uses_zookeeper:
            self._start_zookeeper()
        else:
            self._format()
        self._start_broker()

    @contextmanager
    def down(self) -> Iterator[None]:
        """Shut the broker down for the duration of the block; it returns on the same ports."""
        self._processes.signal(self._pid, signal.SIGTERM)
        assert self._processes.wait(self._pid, PATIENCE) is not None
        try:
            yield
        finally:
            self._start_broker()

    def _start_broker(self) -> None:
        self._pid = self._spawn("kafka.Kafka", self._directory / "broker.properties")
        wait_until(lambda: self._serves(self._pid), "the broker is not ready")

    def _start_zookeeper(self) -> None:
        file = self._directory / "zookeeper.properties"
        settings = {
            "dataDir": self._directory / "zookeeper",
            "clientPort": self._other_port,
            "clientPortAddress": HOST,
            "maxClientCnxns": 0,
        }
        file.write_text(properties(settings))
        pid = self._spawn("org.apache.zookeeper.server.ZooKeeperServerMain", file)
        # A broker tries again until ZooKeeper listens.
        assert self._processes.poll(pid) is None

    def _format(self) -> None:
        options = ["-t", "MkU3OEVBNTcwNTJENDM2Qk", "-c", self._directory / "broker.properties"]
        pid = self._spawn("kafka.tools.StorageTool", "format", *options)
        assert self._processes.wait(pid, PATIENCE) == 0, self._log()

    def _spawn(self, main: str, *arguments: str | Path) -> int:
        command = self.release.command(self._directory, main, *arguments)
        return self._processes.spawn(command, self._environment, self._directory / "output")

    def _serves(self, pid: int) -> bool:
        assert self._processes.poll(pid) is None, f"the broker has ended: {self._log()}"
        request = MetadataRequest(version=4, topics=[], allow_auto_topic_creation=False)
        try:
            answer = _admin.ask(self._port, request, _admin.REQUEST_TIMEOUT)
        except OSError:
            return False
        return answer.controller_id >= 0 and bool(answer.brokers)

    def _log(self) -> str:
        return "\n".join((self._directory / "output").read_text().splitlines()[-30:])

    def _settings(self) -> dict[str, object]:
        listeners = f"PLAINTEXT://{HOST}:{self._port},PROXIED://{HOST}:{self._proxied_port}"
        protocols = "PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT"
        settings: dict[str, object] = {
            "advertised.listeners": f"PLAINTEXT://{self.servers},PROXIED://{self.proxy.address}",
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": self._directory / "logs",
            "log.retention.ms": -1,
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 4,
            "group.initial.rebalance.delay.ms": 0,
            "log.cleaner.dedupe.buffer.size": 10 << 20,
            "num.partitions": 3,
        }
        if self.release.uses_zookeeper:
            settings["broker.id"] = 1
            # It has no other broker to which it could hand over its partitions.
            settings["controlled.shutdown.enable"] = "false"
            settings["zookeeper.connect"] = f"{HOST}:{self._other_port}"
        else:
            listeners += f",CONTROLLER://{HOST}:{self._other_port}"
            protocols += ",CONTROLLER:PLAINTEXT"
            settings["node.id"] = 1
            settings["process.roles"] = "broker,controller"
            settings["controller.listener.names"] = "CONTROLLER"
            settings["controller.quorum.voters"] = f"1@{HOST}:{self._other_port}"
        return settings | {"listeners": listeners, "listener.security.protocol.map": protocols}

    # Topics --------------------------------------------------------------------------------------

    def create_topic(self, topic: str, partitions: int = 1, **config: object) -> None:
        """Create a topic; underscores in the names of *config* stand for dots."""
        create_topic(self.servers, topic, partitions, config)

    def batches(self, topic: str, partition: int = 0) -> list[Any]:
        """Return the record batches of a partition in the broker's files."""
        files = (self._directory / "logs" / f"{topic}-{partition}").glob("*.log")
        return [batch for file in sorted(files) for batch in MemoryRecords(file.read_bytes())]

    def records(self, topic: str, partitions: int = 1, count: int = 0) -> list[list[Any]]:
        """Return what a reader finds in each partition, once there are *count* messages in all."""
        return read(self.servers, topic, partitions, count=count)

    def values(self, topic: str, partitions: int = 1, count: int = 0) -> list[list[Any]]:
        """Return the values in each partition, once there are *count* messages in all."""
        found = self.records(topic, partitions, count)
        return [[record.value for record in records] for records in found]


def create_topic(servers: str, topic: str, partitions: int, config: Mapping[str, object]) -> None:
    """Create a topic; underscores in the names of *config* stand for dots."""
    settings = {name.replace("_", "."): str(value) for name, value in config.items()}
    admin = KafkaAdminClient(bootstrap_servers=servers)
    try:
        admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=settings)])
    finally:
        admin.close()


def read(
    servers: str, topic: str, partitions: int, *, count: int = 0, isolation: str = "read_committed"
) -> list[list[Any]]:
    """Return what kafka-python's consumer finds in each partition, up to its end.

    It waits until there are *count* messages in all, and until no transaction is open.
    """
    places = [TopicPartition(topic, partition) for partition in range(partitions)]
    settings = {"bootstrap_servers": servers, "enable_auto_commit": False}
    every = KafkaConsumer(**settings)
    reader = KafkaConsumer(isolation_level=isolation, **settings)
    found: dict[Any, list[Any]] = {place: [] for place in places}
    try:
        wait_until(lambda: sum(every.end_offsets(places).values()) >= count, f"not {count} in log")
        ends = every.end_offsets(places)
        reader.partitions_for_topic(topic)
        reader.assign(places)
        reader.seek_to_beginning()

        def at_the_end() -> bool:
            for place, records in reader.poll(100).items():
                found[place] += records
            return all(reader.position(place) >= ends[place] for place in places)

        wait_until(at_the_end, "a transaction remains open")
    finally:
        every.close()
        reader.close()
    return list(found.values())


def committed_offset(servers: str, group: str, topic: str) -> int | None:
    """Return the offset that a group has committed of the first partition of *topic*."""
    consumer = KafkaConsumer(bootstrap_servers=servers, group_id=group, enable_auto_commit=False)
    try:
        found: int | None = consumer.committed(TopicPartition(topic, 0))
        return found
    finally:
        close_member(consumer)
