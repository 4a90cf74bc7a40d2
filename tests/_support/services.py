"""Real clusters that a whole run shares, whichever of its processes needs them.

Where the tests run in several worker processes (``pytest -n``), the controller starts each cluster
when the first worker asks for it, and ends it with the run:

1. The controller listens on a Unix socket in a temporary directory; the workers are given its path.
2. A worker asks for a service by name. A thread of the controller starts the cluster, unless it is
   there, and answers with a description. Further requests for it wait for that start.
3. The worker makes a :class:`KafkaCluster` from the description, which can do everything that asks
   the brokers, but cannot stop, kill, pause or restart them.
4. When the controller ends, however it ends, the guard of each cluster ends the brokers. The death
   of a worker has no effect on them.

A process without workers is its own controller, and uses the same socket.

A test that stops or kills brokers uses a separate cluster (``own_cluster``, ``own_cluster3``).
"""

from __future__ import annotations

import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any

from pykaproducer.testing import Broker, ClusterError, KafkaCluster
from pykaproducer.testing._server import HOST

#: How long the controller waits for starts that it has ended (seconds).
_PATIENCE = 30.0


@dataclass
class Description:
    """What another process needs to use a cluster."""

    brokers: list[dict[str, Any]]
    #: By process of the run: the port of the broker's listener, and the port that it advertises.
    proxied: list[tuple[int, int]] = field(default_factory=list)


class _Elsewhere:
    """A substitute for the processes of brokers that another process owns."""

    owned = False

    def poll(self, pid: int) -> int | None:
        """Return None: a shared broker runs as long as the tests."""
        return None

    def __getattr__(self, name: str) -> Any:
        raise ClusterError(
            f"{name}: this cluster is shared by the whole run; a test that controls brokers needs "
            "the fixture own_cluster or own_cluster3"
        )


def attached(description: Description) -> KafkaCluster:
    """Return a cluster that another process owns; ``stop()`` has no effect on it."""
    elsewhere: Any = _Elsewhere()
    cluster = KafkaCluster(len(description.brokers))
    cluster._processes = elsewhere
    cluster._brokers = [Broker(elsewhere, **each) for each in description.brokers]
    return cluster


def _describe(cluster: KafkaCluster) -> Description:
    return Description(
        [
            {
                "node_id": broker.id,
                "port": broker.port,
                "command": (),
                "log_path": broker.log_path,
                "disks": broker._disks,
            }
            for broker in cluster.brokers
        ],
        getattr(cluster, "ports", []),
    )


class ProxiedCluster(KafkaCluster):
    """One broker with a listener for each process of the run, behind a proxy of that process."""

    def __init__(self, processes: int, **options: Any) -> None:
        super().__init__(1, **options)
        self._kept = [socket.socket() for _ in range(2 * processes)]
        for each in self._kept:
            # Bound, but not listening: no other program gets the port. See _guard.py.
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.bind((HOST, 0))
        ports = [each.getsockname()[1] for each in self._kept]
        #: By process: the port of the broker, and the port of the proxy.
        self.ports = list(zip(ports[:processes], ports[processes:], strict=True))

    def _proxied(self, i: int, ports: Sequence[int]) -> list[tuple[int, int]]:
        return self.ports

    def stop(self) -> None:
        """Stop the broker, and release the ports."""
        super().stop()
        for each in self._kept:
            each.close()


#: Makes a cluster, not yet started, for a number of processes.
Maker = Callable[[int], KafkaCluster]


class Controller:
    """Starts the services of a run, and answers the processes that ask for them."""

    def __init__(self, makers: dict[str, Maker], processes: int) -> None:
        self._makers = makers
        self._size = processes
        self._locks = {name: threading.Lock() for name in makers}
        #: Including those that start.
        self._running: dict[str, KafkaCluster] = {}
        self._descriptions: dict[str, Description] = {}
        self._directory = tempfile.mkdtemp(prefix="pykaproducer-run-")
        self.address = str(Path(self._directory) / "services")
        self._listener = Listener(self.address, "AF_UNIX")
        self._closing = False
        self._answering: list[threading.Thread] = []
        self._thread = threading.Thread(target=self._serve, name="services", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End all clusters and the threads."""
        self._closing = True
        Client(self.address, "AF_UNIX").close()
        self._thread.join()
        self._listener.close()
        deadline = time.monotonic() + _PATIENCE
        for thread in self._answering:
            # A cluster that another thread is starting fails at its next step. It may not have
            # taken the first one.
            while thread.is_alive() and time.monotonic() < deadline:
                self._stop()
                thread.join(0.1)
        self._stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _stop(self) -> None:
        for cluster in list(self._running.values()):
            cluster.stop()

    def _serve(self) -> None:
        while True:
            connection = self._listener.accept()
            if self._closing:
                connection.close()
                return
            thread = threading.Thread(target=self._answer, args=(connection,), daemon=True)
            self._answering.append(thread)
            thread.start()

    def _answer(self, connection: Any) -> None:
        with connection:
            name = connection.recv()
            try:
                with self._locks[name]:
                    if name not in self._descriptions:
                        self._start(name)
                connection.send(self._descriptions[name])
            except ClusterError as error:
                connection.send(error)

    def _start(self, name: str) -> None:
        if self._closing:
            raise ClusterError("the run has ended")
        self._running[name] = self._makers[name](self._size)
        self._descriptions[name] = _describe(self._running[name].start())


def ask(address: str, name: str) -> Description:
    """Return the description of a service, which starts if it does not run.

    Raises :class:`ClusterError` if it cannot start.
    """
    with Client(address, "AF_UNIX") as connection:
        connection.send(name)
        answer = connection.recv()
    if isinstance(answer, ClusterError):
        raise answer
    assert isinstance(answer, Description)
    return answer
