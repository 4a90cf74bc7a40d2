"""A real Apache Kafka on loopback, from components installed with pip.

The life cycle of a cluster:

1. ``_jars`` finds Java and Kafka's jars (and downloads the jars, once per user).
2. ``_processes`` starts the guard, a small process that manages the brokers and ends with us.
3. ``_storage`` formats a data directory for each broker, ``_server`` writes its configuration.
4. The guard starts the brokers. The cluster is ready when each broker's metadata response lists all
   brokers.
5. The guard makes an archive of the broker's classes if there is none (``_archive``), for later
   starts.
6. ``stop()`` closes the socket to the guard, which kills the brokers and removes all files.
"""

from __future__ import annotations

import logging
import os
import random
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from pykaproducer._kernel import monotonic
from pykaproducer.testing import _acls, _admin, _features, _jars, _server, _storage
from pykaproducer.testing._archive import ClassArchive
from pykaproducer.testing._broker import SIGNAL_TIMEOUT, Broker, PortTakenError
from pykaproducer.testing._errors import ClusterError
from pykaproducer.testing._metadata_log import partitions_on_unknown_disks
from pykaproducer.testing._processes import GuardedProcesses, tick
from pykaproducer.testing._secured import SecuredListeners
from pykaproducer.testing.proxy import FaultProxy
from pykaproducer.testing.security import Security

T = TypeVar("T")

#: Time for a broker to end after SIGTERM before it is killed (seconds).
_TERMINATE_TIMEOUT = 30.0
#: Maximum number of start attempts if a port is taken before the broker listens on it.
_PORT_ATTEMPTS = 3

_log = logging.getLogger("pykaproducer.testing")


class KafkaCluster:
    """One or more Kafka brokers on 127.0.0.1, each of them a controller too (KRaft).

    ::

        with KafkaCluster() as cluster:
            cluster.create_topic("events", partitions=12)
            producer = Producer(bootstrap_servers=cluster.bootstrap_servers)

    Requires ``pip install "pykaproducer[testing]"``. The first start downloads Kafka.

    - *properties* are added to each broker's configuration (``server.properties``). For example,
      ``{"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}`` has the coordinator
      look for transactions that have timed out every 200 ms, instead of every 10 s.
    - *features* are levels of features to use instead of Kafka's defaults. With
      ``{"transaction.version": 0}`` clients use the transaction protocol before KIP-890.
    - *heap_mb* is Java's heap for each broker; *startup_timeout* (seconds) limits the duration of
      starts and restarts, which take minutes on a busy machine. A broker that ends is not waited
      for.
    - *fast_start* restricts Java to its quick compiler. This halves the processor time until the
      brokers are ready, and also their maximum throughput. The default is False for a single
      broker, which may be benchmarked, and True for several.
    - *log_dir* keeps the brokers' logs; otherwise they are removed with the cluster.
    - *port* is the port of the first broker. The others use the ports that follow it. By default
      each broker uses any free port.
    - *disks* is the number of log directories of each broker. With two or more, :meth:`fail_disk`
      can remove one.
    - *proxies*, one for each broker, are used by clients that connect to :attr:`proxied_servers`.
      Connections between brokers, and all methods here, bypass them.
    - *security*, one :class:`Security` or several, defines what is required of clients. Each one
      adds a separate listener; :meth:`settings` returns the settings of a client. Connections
      between brokers, and all methods here, use a plain listener on loopback (on the ports of
      :attr:`brokers`).

    Guarantees:

    - No process and no file outlives the ``with`` block or the process that owns the cluster,
      however that process ends.
    - Only this machine can connect.
    - Every call returns, or raises :class:`ClusterError`, within a time limit.
    - In a forked child ``stop()`` does nothing, and methods that control a broker raise.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        properties: Mapping[str, str] | None = None,
        features: Mapping[str, int] | None = None,
        heap_mb: int = 512,
        startup_timeout: float = 300.0,
        fast_start: bool | None = None,
        log_dir: str | os.PathLike[str] | None = None,
        port: int | None = None,
        disks: int = 1,
        proxies: Sequence[FaultProxy] = (),
        security: Security | Sequence[Security] = (),
    ) -> None:
        if brokers < 1:
            raise ValueError(f"brokers must be at least 1, not {brokers}")
        if disks < 1:
            raise ValueError(f"disks must be at least 1, not {disks}")
        if isinstance(proxies, (FaultProxy, str, bytes)) or not isinstance(proxies, Sequence):
            raise TypeError(
                f"proxies must be a list of FaultProxy, one for each broker, not "
                f"{type(proxies).__name__}"
            )
        if proxies and len(proxies) != brokers:
            raise ValueError(f"{brokers} brokers need {brokers} proxies, not {len(proxies)}")
        self._security = [security] if isinstance(security, Security) else list(security)
        if proxies and self._security:
            raise ValueError("proxies cannot be combined with security")
        if port is not None and (proxies or self._security):
            raise ValueError("port cannot be combined with proxies or security")
        if port is not None and not 0 < port <= 65536 - brokers:
            raise ValueError(f"port must be from 1 to {65536 - brokers}, not {port}")
        self._size = brokers
        self._properties = dict(properties or {})
        self._features = _storage.feature_levels(features or {})
        self._heap_mb = heap_mb
        self._startup_timeout = startup_timeout
        self._fast_start = brokers > 1 if fast_start is None else fast_start
        self._log_dir = None if log_dir is None else Path(log_dir).absolute()
        self._wanted_ports = [] if port is None else list(range(port, port + brokers))
        self._disks = disks
        self._proxies = list(proxies)
        self._environment: dict[str, str] = {}
        self._brokers: list[Broker] = []
        self._processes: GuardedProcesses | None = None
        self._secured: SecuredListeners | None = None
        self._archive: ClassArchive | None = None

    # Starting and stopping

    def start(self) -> KafkaCluster:
        """Start the brokers and wait until all are ready; no effect on a started cluster."""
        if self._processes is not None:
            return self
        needs_kerberos = any(each.kerberos is not None for each in self._security)
        java = _jars.java_with("jdk.security.jgss") if needs_kerberos else _jars.java()
        jars = _jars.kafka_jars()
        self._environment = _server.environment(jars)
        for _ in range(_PORT_ATTEMPTS - 1):
            try:
                return self._start_once(java, jars)
            except PortTakenError as error:
                _log.info("%s; starting the cluster again on other ports", error)
        return self._start_once(java, jars)

    def stop(self) -> None:
        """Kill the brokers and remove their data; no effect on a stopped cluster."""
        # Another thread may stop the cluster at the same time.
        processes, archive = self._processes, self._archive
        try:
            if processes is not None and archive is not None:
                archive.finish(processes)
        finally:
            if processes is not None and processes.owned:
                processes.end()
                self._processes = None

    def __enter__(self) -> KafkaCluster:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            # After an error or Ctrl-C, do not wait for the archive.
            self._archive = None
        self.stop()

    # Clients

    @property
    def bootstrap_servers(self) -> str:
        """The brokers' addresses, as ``"127.0.0.1:p1,127.0.0.1:p2"``.

        They belong to the first secured listener, or to the plain one without *security*.
        """
        return self._servers(0)

    def settings(
        self, user: str | None = None, *, listener: int = 0, **changes: Any
    ) -> dict[str, Any]:
        """Return the settings of a client that connects as *user* to a secured listener.

        The names are those of kafka-python and :class:`pykaproducer.Producer`:
        ``bootstrap_servers``, ``security_protocol``, ``ssl_cafile``, ``sasl_mechanism`` and so on;
        *changes* replace or add some. The default *user* is the listener's first. *listener* is the
        index of its :class:`Security`.
        """
        mine = {} if self._secured is None else self._secured.settings(listener, user)
        return {"bootstrap_servers": self._servers(listener)} | mine | changes

    @property
    def proxied_servers(self) -> str:
        """The proxies' addresses. Clients that use them reach the brokers only through proxies."""
        if not self._proxies:
            raise ClusterError("the cluster has no proxies; use KafkaCluster(proxies=...)")
        return ",".join(proxy.address for proxy in self._proxies)

    @property
    def brokers(self) -> list[Broker]:
        """The brokers, with the index equal to the broker id."""
        if self._processes is None:
            raise ClusterError("the cluster is not running; call start(), or use a with block")
        return list(self._brokers)

    # Access control

    def allow(self, user: str, name: str | None, *operations: str, kind: str = "topic") -> None:
        """Allow *user* operations on a topic: ``"WRITE"``, ``"DESCRIBE"``, by default all.

        With *kind* ``"group"`` or ``"transactional_id"`` the *name* is that of such a resource.
        ``"*"`` means every one, None the cluster itself (``"IDEMPOTENT_WRITE"``). Returns when
        every running broker applies the rule. Requires ``Security(authorize=True)``.
        """
        rules = _acls.rules(user, name, operations, kind)
        self._ask_any(lambda port: _acls.create(port, rules))
        self._wait_for(lambda broker: broker._goes_by(rules, True), f"{rules} are not applied")

    def revoke(self, user: str, name: str | None, *operations: str, kind: str = "topic") -> None:
        """Revoke what :meth:`allow` allowed with the same arguments."""
        rules = _acls.rules(user, name, operations, kind)
        self._ask_any(lambda port: _acls.delete(port, rules))
        self._wait_for(lambda broker: broker._goes_by(rules, False), f"{rules} are still applied")

    # Features

    def set_feature(self, name: str, level: int) -> None:
        """Change the level of a feature of *features*, and wait until every broker applies it.

        Clients learn it when they connect.
        """
        _storage.feature_levels({name: level})
        self._ask_any(lambda port: _features.set_level(port, name, level))
        self._wait_for(lambda broker: broker._has_level(name, level), f"{name} is not {level}")

    # Faults

    def kill(self, i: int) -> None:
        """Kill broker *i* (SIGKILL), as if its machine had lost power."""
        if not self._broker(i)._end(signal.SIGKILL, SIGNAL_TIMEOUT):
            raise ClusterError(f"broker {i} has not ended within {SIGNAL_TIMEOUT:g} s of SIGKILL")

    def terminate(self, i: int) -> None:
        """Shut down broker *i* (SIGTERM), which moves its leaderships, and wait for its end.

        A broker that cannot shut down, because too few others are left, is killed after 30 s.
        """
        broker = self._broker(i)
        if broker.paused:
            self.resume(i)
        if not broker._end(signal.SIGTERM, _TERMINATE_TIMEOUT):
            _log.warning("broker %d did not end within %.0f s; killing it", i, _TERMINATE_TIMEOUT)
            self.kill(i)

    def pause(self, i: int) -> None:
        """Stop broker *i* (SIGSTOP): its sockets stay open, but it does not respond."""
        self._broker(i)._pause()

    def resume(self, i: int) -> None:
        """Resume a paused broker (SIGCONT)."""
        self._broker(i)._resume()

    def fail_disk(self, i: int) -> None:
        """Remove the last disk of broker *i*, as if it had failed. :meth:`restart` restores it.

        The broker notices it within a few seconds, when it next writes a checkpoint there. From
        then on it answers KAFKA_STORAGE_ERROR for the partitions on that disk until it is
        restarted, while the controller elects another leader for each of them. Waits until the
        controller knows the disk of each partition. Otherwise a partition created a moment ago
        would keep its leader.
        """
        broker = self._broker(i)
        broker._check_that_a_disk_can_fail()
        deadline = monotonic() + _admin.TOPIC_TIMEOUT
        while broker.running and (unknown := self._on_unknown_disks(broker)):
            if monotonic() > deadline:
                raise ClusterError(
                    f"{broker} has not reported the disks of {unknown} partitions to the "
                    f"controller within {_admin.TOPIC_TIMEOUT:g} s"
                )
            tick()
        broker._fail_disk()

    def _on_unknown_disks(self, broker: Broker) -> int:
        logs = [each._metadata_log() for each in self.brokers if each.running]
        return max(len(partitions_on_unknown_disks(log, broker.id)) for log in logs)

    def disk_of(self, i: int, topic: str, partition: int) -> int | None:
        """Return the disk of broker *i*, from 0, that contains a partition, or None."""
        return self._broker(i)._disk_of(topic, partition)

    def restart(self, *ids: int) -> None:
        """Start brokers again with their ports and their data, and wait until they are ready.

        Running brokers are terminated first. If a majority is down, restart enough brokers in one
        call to restore it, because a single one cannot become ready alone. After a kill, the start
        waits for the end of the old session (``broker.session.timeout.ms``, 5 s).
        """
        brokers = [self._broker(i) for i in ids]
        for broker in brokers:
            if broker.alive:
                self.terminate(broker.id)
        for broker in brokers:
            broker._return_disks()
            broker._spawn(self._environment)
        self._wait_ready(brokers)

    # Topics

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic and wait until every partition has a leader on every running broker.

        The default replication factor is 3, or the number of brokers if that is less.
        """
        replicas = min(3, self._size) if replication_factor is None else replication_factor
        self._ask_any(
            lambda port: _admin.create_topic(port, name, partitions, replicas, config or {})
        )

        def has_leaders(metadata: _admin.FetchedMetadata) -> bool:
            leaders = metadata.leaders.values()
            return len(leaders) >= partitions and min(leaders) >= 0

        self._wait_for_topic(name, has_leaders, "lacks a leader for some partition")

    def delete_topic(self, name: str) -> None:
        """Delete a topic and wait until no running broker knows it."""
        self._ask_any(lambda port: _admin.delete_topic(port, name))
        self._wait_for_topic(name, lambda metadata: not metadata.leaders, "still exists")

    def leader_of(self, topic: str, partition: int) -> int:
        """Return the leader of a partition, as an index for :meth:`kill` and the others.

        Waits while there is none, or while the reported leader is not alive.
        """
        deadline = monotonic() + self._startup_timeout
        while True:
            metadata = self._ask_any(lambda port: _admin.fetch_metadata(port, topic))
            leader = metadata.leaders.get(partition)
            if leader is None:
                known = f"partitions {sorted(metadata.leaders)}" if metadata.leaders else "none"
                raise ClusterError(f"no partition {partition} of topic {topic!r}; it has {known}")
            if leader >= 0 and self._brokers[leader].alive:
                return leader
            if not _time_left(deadline):
                raise ClusterError(f"partition {partition} of topic {topic!r} has no leader")

    # Internal steps

    def _start_once(self, java: Path, jars: Sequence[Path]) -> KafkaCluster:
        processes = self._processes = GuardedProcesses()
        started = False
        try:
            self._archive = ClassArchive(java, jars, processes.directory)
            self._brokers = self._prepare(processes, java, self._archive)
            for broker in self._brokers:
                broker._spawn(self._environment)
            self._wait_ready(self._brokers)
            self._archive.make(processes, self._environment)
            started = True
        finally:
            if not started:
                self._archive = None
                self.stop()
        _log.info("Kafka %s is ready at %s", _jars.KAFKA_VERSION, self.bootstrap_servers)
        return self

    def _prepare(
        self, processes: GuardedProcesses, java: Path, archive: ClassArchive
    ) -> list[Broker]:
        """Create the directory of a new cluster, and its brokers."""
        directory = processes.directory
        logs = self._log_dir or directory
        logs.mkdir(parents=True, exist_ok=True)
        # Additional ports of a broker: one for its proxy, or one for each secured listener.
        others = len(self._security) or bool(self._proxies)
        numbers = processes.reserve((2 + others) * self._size, self._wanted_ports)
        clients, controllers = numbers[: self._size], numbers[self._size : 2 * self._size]
        ports = [_server.Ports(*pair) for pair in zip(clients, controllers, strict=True)]
        numbers = numbers[2 * self._size :]
        if self._security:
            self._secured = SecuredListeners(self._security, directory / "security")
        cluster_id = _storage.random_id()
        # Any of them, as in other clusters.
        candidate = random.randrange(self._size)
        brokers = []
        for i in range(self._size):
            data, settings = directory / f"broker-{i}", directory / f"broker-{i}.properties"
            mine = numbers[i * others : (i + 1) * others]
            extra = dict(self._properties)
            if self._proxies:
                self._proxies[i].target = _server.HOST, mine[0]
            if proxied := self._proxied(i, mine):
                extra |= _server.behind_proxies(ports[i], proxied)
            if self._secured is not None:
                extra = self._secured.properties(ports[i], mine) | extra
            credentials = self._secured.credentials if self._secured else ()
            secured = mine if self._secured else ()
            _storage.format_directory(data, cluster_id, i, credentials, self._features)
            if i == candidate and self._size > 1:
                _storage.vote_for_itself(data, i, range(self._size))
            disks = [data, *(directory / f"broker-{i}-disk-{n}" for n in range(1, self._disks))]
            for disk in disks[1:]:
                _storage.format_disk(disk, cluster_id, i)
            if len(disks) > 1:
                extra = _server.on_disks(disks) | extra
            settings.write_text(_server.server_properties(i, ports, data, extra))
            options = archive.java_options(i)
            options += self._secured.java_options() if self._secured else ()
            command = _server.command(
                java, self._heap_mb, self._fast_start, directory, settings, options
            )
            log_path = logs / f"broker-{i}.log"
            brokers.append(Broker(processes, i, ports[i].client, command, log_path, secured, disks))
        return brokers

    def _proxied(self, i: int, ports: Sequence[int]) -> list[tuple[int, int]]:
        """Return the ports of broker *i* that only proxies connect to, with the proxies' ports."""
        return [(ports[0], self._proxies[i].port)] if self._proxies else []

    def _wait_ready(self, started: list[Broker]) -> None:
        """Wait until every running broker answers, and lists those just *started*."""
        deadline = monotonic() + self._startup_timeout
        expected = frozenset(broker.id for broker in started)
        for broker in self._brokers:
            # 1. A started broker is alive. 2. It ends. 3. It would be skipped like brokers that are
            # not running, and the start be considered a success. So only others may be down.
            while (broker in started or broker.running) and not broker._serves(expected):
                for each in started:
                    each._check_started()
                if not _time_left(deadline):
                    raise ClusterError(
                        f"{broker} was not ready within {self._startup_timeout:g} s; its log "
                        f"ends with:\n{broker.log_tail()}"
                    )

    def _ask_any(self, request: Callable[[int], T]) -> T:
        """Send a request to the first broker that answers."""
        failures = []
        for broker in self.brokers:
            if not broker.running:
                continue
            try:
                return request(broker.port)
            except OSError as error:
                failures.append(f"broker {broker.id}: {error}")
        raise ClusterError("no broker answered: " + ("; ".join(failures) or "none is running"))

    def _wait_for_topic(
        self, name: str, wanted: Callable[[_admin.FetchedMetadata], bool], otherwise: str
    ) -> None:
        self._wait_for(lambda broker: broker._knows(name, wanted), f"topic {name!r} {otherwise}")

    def _wait_for(self, reached: Callable[[Broker], bool], otherwise: str) -> None:
        """Wait until every running broker has *reached* a state; *otherwise*: the error."""
        deadline = monotonic() + _admin.TOPIC_TIMEOUT
        for broker in self.brokers:
            while broker.running and not reached(broker):
                if not _time_left(deadline):
                    raise ClusterError(f"on {broker} {otherwise}")

    def _servers(self, listener: int) -> str:
        """Return the addresses of a listener, or of the plain one if there is no other."""
        return ",".join(f"{broker.host}:{broker._port_of(listener)}" for broker in self.brokers)

    def _broker(self, i: int) -> Broker:
        brokers = self.brokers
        if not 0 <= i < len(brokers):
            raise ValueError(f"there is no broker {i}; the cluster has 0 to {len(brokers) - 1}")
        return brokers[i]


def _time_left(deadline: float) -> bool:
    """Wait briefly. Return whether *deadline* is still ahead."""
    tick()
    return monotonic() < deadline
