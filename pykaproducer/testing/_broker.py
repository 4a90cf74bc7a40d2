"""One broker of the test cluster: its process, its log and its responses."""

from __future__ import annotations

import shutil
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pykaproducer.testing import _acls, _admin, _features, _server
from pykaproducer.testing._errors import ClusterError
from pykaproducer.testing._processes import GuardedProcesses

#: Time for the kernel to kill or stop a process (seconds).
SIGNAL_TIMEOUT = 10.0
_PORT_TAKEN = "Address already in use"


class PortTakenError(ClusterError):
    """A port that was reserved for a broker was taken by another process."""


class Broker:
    """One broker of a :class:`KafkaCluster`, for inspection.

    To change its state, use the cluster's methods (:meth:`KafkaCluster.kill` and the others).
    """

    __module__ = "pykaproducer.testing"

    def __init__(
        self,
        processes: GuardedProcesses,
        node_id: int,
        port: int,
        command: Sequence[str],
        log_path: Path,
        secured_ports: Sequence[int] = (),
        disks: Sequence[Path] = (),
    ) -> None:
        self.id = node_id
        self.host = _server.HOST
        self.port = port
        #: The output of the broker and of Java; kept over restarts.
        self.log_path = log_path
        #: Id of the current process, or of the last one.
        self.pid = 0
        #: True between ``pause()`` and ``resume()``.
        self.paused = False
        self._processes = processes
        self._command = command
        self._secured_ports = list(secured_ports)
        self._disks = list(disks)

    def __repr__(self) -> str:
        return f"<Broker {self.id} at {self.host}:{self.port}, process {self.pid}>"

    # The process

    @property
    def alive(self) -> bool:
        """True while its process exists, even if it is paused."""
        return self.exit_status is None

    @property
    def running(self) -> bool:
        """True while its process exists and is not paused."""
        return self.alive and not self.paused

    @property
    def exit_status(self) -> int | None:
        """Exit status of the process (negative: the signal); None while it exists."""
        return self._processes.poll(self.pid)

    def log_tail(self, lines: int = 30) -> str:
        """Return the last lines of the log."""
        try:
            text = self.log_path.read_text(errors="replace")
        except OSError as error:
            return f"(no log: {error})"
        return "\n".join(text.splitlines()[-lines:])

    def _port_of(self, listener: int) -> int:
        """Return the port of a secured listener, or of the plain one if there is none."""
        return self._secured_ports[listener] if self._secured_ports else self.port

    def _spawn(self, environment: Mapping[str, str]) -> None:
        self.pid = self._processes.spawn(self._command, environment, self.log_path)
        self.paused = False

    def _signal(self, number: int) -> bool:
        return self._processes.signal(self.pid, number)

    def _pause(self) -> None:
        self._check_exists(self._processes.stop(self.pid, SIGNAL_TIMEOUT))
        self.paused = True

    def _resume(self) -> None:
        self._check_exists(self._signal(signal.SIGCONT))
        self.paused = False

    def _check_exists(self, signalled: bool) -> None:
        if not signalled:
            raise ClusterError(f"broker {self.id} is not running; call restart({self.id})")

    def _end(self, number: int, timeout: float) -> bool:
        """Signal the process and wait for its end. Return false on timeout."""
        ended = not self._signal(number) or self._processes.wait(self.pid, timeout) is not None
        self.paused = self.paused and not ended
        return ended

    def _check_started(self) -> None:
        if (status := self.exit_status) is not None:
            # The reason is some lines before the end, because the broker logs its shutdown.
            taken = _PORT_TAKEN in self.log_tail(1000)
            raise (PortTakenError if taken else ClusterError)(
                f"{self} exited with status {status} during startup; its log ends with:\n"
                f"{self.log_tail()}"
            )

    # The disks

    def _check_that_a_disk_can_fail(self) -> None:
        if len(self._disks) < 2:
            raise ClusterError("the only disk of a broker cannot fail; use KafkaCluster(disks=2)")
        if _failed(self._disks[-1]).exists():
            raise ClusterError(f"the last disk of broker {self.id} has already failed")

    def _fail_disk(self) -> None:
        disk = self._disks[-1]
        disk.rename(_failed(disk))
        # A file takes its place, so that the broker cannot create the directory again. It may have
        # done so already: 1. rename, 2. the broker creates a partition there, with every missing
        # parent, 3. touch. The disk would be empty but healthy, and the broker would not notice.
        while True:
            try:
                disk.touch(exist_ok=False)
                return
            except FileExistsError:
                shutil.rmtree(disk, ignore_errors=True)

    def _return_disks(self) -> None:
        for disk in self._disks:
            if _failed(disk).exists():
                disk.unlink()
                _failed(disk).rename(disk)

    def _metadata_log(self) -> Path:
        return self._disks[0] / "__cluster_metadata-0"

    def _disk_of(self, topic: str, partition: int) -> int | None:
        for number, disk in enumerate(self._disks):
            if (disk / f"{topic}-{partition}").exists():
                return number
        return None

    # The answers

    def _serves(self, expected: frozenset[int]) -> bool:
        """Return whether it answers, knows the *expected* brokers, and has all listeners open."""
        try:
            for port in self._secured_ports:
                socket.create_connection((self.host, port), _admin.REQUEST_TIMEOUT).close()
            return _admin.fetch_metadata(self.port).brokers >= expected
        except OSError:
            return False

    def _knows(self, topic: str, wanted: Callable[[_admin.FetchedMetadata], bool]) -> bool:
        """Return whether it answers and *wanted* accepts its metadata of a topic."""
        try:
            return wanted(_admin.fetch_metadata(self.port, topic))
        except OSError:
            return False

    def _goes_by(self, rules: Sequence[_acls.Rule], wanted: bool) -> bool:
        """Return whether it answers and applies all *rules* (or none, if not *wanted*)."""
        try:
            return all(_acls.known(self.port, rule) == wanted for rule in rules)
        except OSError:
            return False

    def _has_level(self, feature: str, level: int) -> bool:
        """Return whether it answers and applies this level of a feature."""
        try:
            return _features.current_level(self.port, feature) == level
        except OSError:
            return False


def _failed(disk: Path) -> Path:
    """Return the path to which a failed disk is moved."""
    return disk.with_name(f"{disk.name}-failed")
