"""The process under load: numbered messages at a steady rate, until it is asked to end."""

from __future__ import annotations

import faulthandler
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.child import Parent
from chaos import ledger, shortage
from chaos.ledger import Ledger
from chaos.producers import CLIENTS, Client, Refused, Settings

#: The point at which the faults begin.
UNDER_LOAD = "under load"

#: Raised if memory is refused. CPython 3.11 raises SystemError if it cannot allocate a frame.
_NO_MEMORY = (MemoryError, SystemError)
_NOT_ACCEPTED = (Refused, *_NO_MEMORY)
#: How often the sender checks how many messages are due (seconds).
_TICK = 0.002
#: The time that close() gets in addition (seconds).
_CLOSE = 10.0
#: How long a joined thread may still be visible to the system (seconds).
_GRACE = 0.5


class Load:
    """A sender to all partitions in turn, in a separate thread."""

    def __init__(self, clients: Sequence[Client], book: Ledger, job: Mapping[str, Any]) -> None:
        self._clients, self._book = clients, book
        self._rate, self._size = job["rate"], job["size"]
        self._numbers = [0] * job["partitions"]
        self._end = threading.Event()
        self.refused = 0
        #: The longest call of send() (seconds).
        self.longest = 0.0
        self._thread = threading.Thread(target=self._send, name="load", daemon=True)
        self._thread.start()  # last, because the thread uses all of these

    def end(self, timeout: float) -> None:
        self._end.set()
        self._thread.join(timeout)

    def _send(self) -> None:
        begin, turn = time.monotonic(), 0
        while not self._end.is_set():
            try:
                due = int((time.monotonic() - begin) * self._rate)
                while turn < due and not self._end.is_set():
                    self._one(turn % len(self._numbers))
                    turn += 1
            except _NO_MEMORY:
                pass  # refused to this thread, before it has sent anything
            time.sleep(_TICK)

    def _one(self, partition: int) -> None:
        number = self._numbers[partition]
        value = ledger.value(partition, number, self._size)
        told = partial(self._book.settled, partition, number)
        called = time.monotonic()
        try:
            self._clients[partition % len(self._clients)].send(partition, value, told)
        except _NOT_ACCEPTED:
            accepted = False
        else:
            accepted = True
        shortage.pause()
        if accepted:
            self._numbers[partition] = number + 1
            self._book.sent(partition, number, called)
        else:
            self.refused += 1
        self.longest = max(self.longest, time.monotonic() - called)
        shortage.resume()


def measure(job: Mapping[str, Any], parent: Parent) -> dict[str, Any]:
    """Send while the parent injects faults; then close, and count the remaining resources."""
    book = Ledger(Path(job["directory"]), job["partitions"])
    if job["client"] == "pykaproducer":
        shortage.watch(Path(job["directory"]))
    threads, sockets = ledger.threads(), ledger.sockets()
    settings = Settings(**job["settings"])
    clients = [CLIENTS[job["client"]](settings) for _ in range(job["producers"])]
    load = Load(clients, book, job)
    parent.reach(UNDER_LOAD)
    # From here on every step is bounded: a hang ends the process with a traceback.
    faulthandler.dump_traceback_later(3 * settings.delivery_timeout + _CLOSE + 30, exit=True)
    load.end(settings.delivery_timeout + 2)
    start = time.monotonic()
    deadline = start + settings.delivery_timeout + 2
    for client in clients:
        client.flush(max(0.0, deadline - time.monotonic()))
    flushed = time.monotonic()
    transitions: Counter[str] = Counter()
    exercised: Counter[str] = Counter()
    for client in clients:
        transitions.update(client.transitions())
        exercised.update(client.exercised())
        client.close(_CLOSE)
    closed = time.monotonic()
    book.close()
    del client, clients, load._clients
    left = left_over(threads, sockets)
    return {
        "messages sent": sum(book.counters.sent),
        "messages settled": sum(book.counters.settled),
        "messages delivered": sum(book.counters.delivered),
        "messages not accepted": load.refused,
        "longest send() (s)": load.longest,
        "longest flush() (s)": flushed - start,
        "longest close() (s)": closed - flushed,
        "threads left": left[0],
        "sockets left": left[1],
        "transitions": transitions,
        "exercised": exercised,
    }


def left_over(threads: int, sockets: set[str]) -> tuple[int, int]:
    """Return how many more threads and sockets there are than before."""
    deadline = time.monotonic() + _GRACE
    while True:
        # Threads are only counted, not identified: the watchdog of this process is a new one each
        # time.
        left = max(0, ledger.threads() - threads), len(ledger.sockets() - sockets)
        if not any(left) or time.monotonic() > deadline:
            return left
        time.sleep(_TICK)
