"""A process under load: one transaction after the other, until it gets a command to end.

``python -m chaos.transactions.load JOB``. Commands are JSON objects, one in each line
of standard input: ``{"do": "end"}``, ``{"do": "sleep", "seconds": 6}`` (in the middle of a
transaction) and ``{"do": "die", "at": POINT}`` (see ``points.py``).
"""

from __future__ import annotations

import errno
import faulthandler
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from chaos.audit import Status
from chaos.ledger import sockets, threads
from chaos.load import left_over
from chaos.transactions import points as at
from chaos.transactions.board import Board
from chaos.transactions.clients import (
    CLIENTS,
    MustAbort,
    TransactionSettings,
    Trouble,
    Unfinished,
    Unusable,
)
from chaos.transactions.history import (
    Call,
    Journal,
    Messages,
    Name,
    Reported,
    Source,
    Value,
    encode,
)
from chaos.transactions.readback import committed_offsets

#: The most messages in a transaction, and which of them are aborted on purpose.
_MOST, _ABORTED = 500, 10
#: begin_transaction() waits for nothing, but the machine is busy (seconds).
_AT_ONCE = 1.0
#: How long a call that has not ended is repeated (seconds).
_PATIENCE = 120.0
#: The time that close() gets (seconds), which is also when a process without descriptors retries.
_CLOSE, _PAUSE = 10.0, 0.1
#: How long an orderly end may take before the process prints its tracebacks and ends (seconds).
_END = 180.0


class GaveUp(Exception):
    """A call has been repeated for too long."""


class Commands:
    """The commands of the process that injects faults."""

    def __init__(self, points: at.Points) -> None:
        self.ending = threading.Event()
        #: How long to sleep in the next transaction (seconds).
        self.sleep = 0.0
        self._points = points
        threading.Thread(target=self._read, name="commands", daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            match json.loads(line):
                case {"do": "sleep", "seconds": seconds}:
                    self.sleep = seconds
                case {"do": "die", "at": point}:
                    self._points.armed = point
                case {"do": "end"}:
                    break
        # Also if the other process has ended.
        faulthandler.dump_traceback_later(_END, exit=True)
        self.ending.set()


class Life:
    """One producer object, from its construction to ``close()``."""

    def __init__(self, load: TransactionalLoad) -> None:
        self._load, self._job, self._board = load, load.job, load.board
        self._threads, self._sockets = threads(), sockets()
        self._settings = TransactionSettings(**self._job["settings"])
        self._journal = Journal(Path(self._job["directory"]), self._settings.transactional_id)
        self._client = CLIENTS[self._job["client"]](self._settings)
        self._random = random.Random(f"{self._job['seed']} {self._journal.number}")
        self._serial = 0
        #: Whether the end of the transaction has been requested.
        self._requested = False
        #: Transactions of which some messages have no outcome yet.
        self._open: list[Messages] = []
        #: By input partition: the first that has not been used.
        self._positions: dict[int, int] = {}

    def run(self) -> None:
        """Work until the end, or until the producer cannot be used."""
        try:
            self._control("init_transactions", self._client.init, self._settings.max_block)
            self._journal.ready()
            if self._job["group"]:
                self._positions = committed_offsets(
                    self._job["ports"],
                    self._settings.group,
                    self._settings.input_topic,
                    self._job["partitions"],
                    _PATIENCE,
                )
            while not self._load.commands.ending.is_set():
                began = time.monotonic()
                count = self._transaction()
                left = began + count / self._job["rate"] - time.monotonic()
                self._load.commands.ending.wait(max(0.0, left))
        except (Unusable, GaveUp) as trouble:
            self._journal.note(str(trouble))
        finally:
            self._end()

    def _end(self) -> None:
        self._client.close(_CLOSE)
        del self._client
        for messages in self._open:
            self._journal.outcomes(messages)
        self._journal.closed(*left_over(self._threads, self._sockets))
        self._journal.close()

    # One transaction -----------------------------------------------------------------------------

    def _transaction(self) -> int:
        """Do one transaction; return the number of its messages."""
        self._serial += 1
        self._requested = False
        messages, begun_at = Messages(self._serial), time.monotonic()
        self._journal.begun(self._serial)
        self._board.begun += 1
        self._open.append(messages)
        commit = self._serial % _ABORTED != 0
        reported = None
        try:
            self._call("begin_transaction", self._client.begin, _AT_ONCE)
            self._load.points.reach(at.BEGUN)
            positions = self._send_all(messages)
            if commit:
                reported = self._commit(messages)
                if reported is Reported.COMMITTED:
                    self._positions, self._board.progress = positions, begun_at
            else:
                if self._random.random() < 0.5:
                    self._client.flush(self._settings.delivery_timeout)
                reported = self._abort(messages)
        except MustAbort as trouble:
            self._journal.note(f"{Name(self._journal.number, self._serial)}: {trouble}")
            reported = self._abort(messages)
        finally:
            self._count(reported)
        return len(messages.outcomes)

    def _count(self, reported: Reported | None) -> None:
        self._board.committed += reported is Reported.COMMITTED
        self._board.not_committed += reported is not Reported.COMMITTED
        for messages in [each for each in self._open if each.complete]:
            self._open.remove(messages)
            self._journal.outcomes(messages)

    def _send_all(self, messages: Messages) -> dict[int, int]:
        """Send the messages; return the next positions in the inputs."""
        count = int(_MOST ** self._random.random())
        partitions = self._random.sample(
            range(self._job["partitions"]), self._random.choice((1, 2, self._job["partitions"]))
        )
        positions = dict(self._positions)
        inputs = (
            self._random.sample(sorted(positions), self._random.randint(1, 3)) if positions else []
        )
        early = self._random.random() < 0.3
        for i in range(count):
            source = None
            if inputs:
                place = self._random.choice(inputs)
                source = Source(place, positions[place])
                positions[place] += 1
            if i == count // 2:
                self._interrupt()
                if early:
                    self._send_offsets(positions)
            self._send(messages, self._random.choice(partitions), source)
        self._load.points.reach(at.SENT)
        self._send_offsets(positions)
        return positions

    def _interrupt(self) -> None:
        self._load.points.reach(at.SENDING)
        seconds, self._load.commands.sleep = self._load.commands.sleep, 0.0
        if seconds:
            self._journal.note(f"sleeping {seconds:.1f} s in transaction {self._serial}")
            time.sleep(seconds)

    def _send(self, messages: Messages, partition: int, source: Source | None) -> None:
        number = messages.add(partition)
        name = Name(self._journal.number, self._serial)
        value = encode(Value(name, number, partition, source), self._job["size"])
        try:
            self._client.send(partition, value, partial(self._settled, messages, number))
        except Trouble:
            messages.remove()
            raise
        self._board.sent += 1

    def _settled(self, messages: Messages, number: int, status: Status, offset: int) -> None:
        messages.settle(number, status, offset)
        self._board.settled += 1
        self._board.delivered += status is Status.PERSISTED

    def _send_offsets(self, positions: Mapping[int, int]) -> None:
        changed = {
            place: offset for place, offset in positions.items() if offset != self._positions[place]
        }
        if changed:
            offsets = partial(self._client.offsets, changed)
            self._control("send_offsets_to_transaction", offsets, self._settings.max_block)
            self._load.points.reach(at.OFFSETS_SENT)

    # Its end -------------------------------------------------------------------------------------

    def _commit(self, messages: Messages) -> Reported:
        self._requested = True
        self._journal.requested(self._serial, "commit", len(messages.outcomes))
        bound = self._settings.delivery_timeout + self._settings.max_block
        try:
            self._control("commit_transaction", self._client.commit, bound)
        except (MustAbort, Unusable) as trouble:
            if trouble.reported is not None:
                self._journal.reported(self._serial, trouble.reported)
            raise
        self._load.points.reach(at.COMMITTED)
        self._journal.reported(self._serial, Reported.COMMITTED)
        return Reported.COMMITTED

    def _abort(self, messages: Messages) -> Reported:
        if not self._requested:
            self._requested = True
            self._journal.requested(self._serial, "abort", len(messages.outcomes))
        try:
            self._control("abort_transaction", self._client.abort, self._settings.max_block)
        except Unusable:
            self._journal.reported(self._serial, Reported.NOT_COMMITTED)
            raise
        self._load.points.reach(at.ABORTED)
        self._journal.reported(self._serial, Reported.NOT_COMMITTED)
        return Reported.NOT_COMMITTED

    # Calls ---------------------------------------------------------------------------------------

    def _control(self, what: str, function: Callable[[float | None], None], bound: float) -> None:
        """Call *function* again until it has ended; sometimes with a short timeout."""
        began = time.monotonic()
        while True:
            timeout = self._random.choice((None, None, None, 0.05, 1.0))
            try:
                limit = bound if timeout is None else timeout
                self._call(what, partial(function, timeout), limit)
            except Unfinished as trouble:
                if time.monotonic() - began > _PATIENCE:
                    raise GaveUp(f"{what} has not ended in {_PATIENCE:g} s: {trouble}") from trouble
            else:
                return

    def _call(self, what: str, function: Callable[[], None], bound: float) -> None:
        began, error = time.monotonic(), ""
        try:
            function()
        except Trouble as trouble:
            error = trouble.error
            raise
        finally:
            took = time.monotonic() - began
            self._journal.called(Call(what, began, took, bound, error))


class TransactionalLoad:
    """The process: one life after the other, until the end or until it is superseded."""

    def __init__(self, job: Mapping[str, Any]) -> None:
        self.job = job
        self.board = Board(Path(job["board"]))
        self.points = at.Points(job.get("die_at"))
        self.commands = Commands(self.points)
        if job["client"] == "pykaproducer":
            at.install(self.points)

    def run(self) -> None:
        while not self.commands.ending.is_set():
            try:
                Life(self).run()
            except OSError as error:
                if error.errno != errno.EMFILE:
                    raise
                self.commands.ending.wait(_PAUSE)  # there will be descriptors again
            if self.board.process not in (0, os.getpid()):
                return  # another process has taken over


def main() -> None:
    faulthandler.enable()
    TransactionalLoad(json.loads(sys.argv[1])).run()


if __name__ == "__main__":
    main()
