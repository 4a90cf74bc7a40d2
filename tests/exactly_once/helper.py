"""A query without Spark: its tasks and its driver are functions of this process."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Self

import pytest

from pykaproducer import Producer, TransactionControl
from pykaproducer._exactly_once import points
from pykaproducer._exactly_once.commit import BatchCommit
from pykaproducer._exactly_once.errors import TransactionsExpiredError
from pykaproducer._exactly_once.names import Names
from pykaproducer._exactly_once.points import InjectedFault
from pykaproducer._exactly_once.records import BatchKey
from pykaproducer._exactly_once.setup import Setup, WriteKind
from pykaproducer._exactly_once.task import TaskPlace, TaskResult, write_rows
from pykaproducer._load.summary import Summary
from pykaproducer.testing._processes import tick
from pykaproducer.transaction_control import OPEN_STATES
from tests.transactions.helper import PATIENCE, read

#: Rows of a batch.
ROWS = 24
#: A distribution of rows to tasks: row number -> task.
Layout = Callable[[int], int]


def four_tasks(row: int) -> int:
    """Distribute rows to four tasks."""
    return row % 4


def three_tasks(row: int) -> int:
    """Distribute rows to three tasks, of which the second has none."""
    return 0 if row < ROWS // 3 else 2


LAYOUTS: dict[str, Layout] = {"same": four_tasks, "other": three_tasks}
#: The points of a task.
TASK = ["read", "initialized", "row", "sent", "marked", "prepared"]
#: The points of the driver, with the number of ended transactions: before it has decided, and then.
UNDECIDED = [(point, 0) for point in ("driver-initialized", "driver-read", "checked", "written")]
DECIDED = [("decided", 0), *[("ended", number) for number in range(1, 5)]]
DRIVER = [*UNDECIDED, *DECIDED, ("completed", 0), ("swept", 0)]

each_driver_point = pytest.mark.parametrize(
    "point", DRIVER, ids=lambda each: f"{each[0]}-{each[1]}"
)


def expected(batches: int) -> Counter[bytes]:
    """Return the rows of the first *batches*, each once."""
    return Counter(b"%d-%d" % (batch, row) for batch in range(batches) for row in range(ROWS))


class RowsOfTask:
    """The rows of a task: short texts."""

    def __init__(self, topic: str, values: Sequence[bytes], half: Callable[[], None]) -> None:
        self._topic = topic
        self._values = values
        self._half = half

    def is_empty(self) -> bool:
        return not self._values

    def read(self) -> tuple[int, int]:
        return len(self._values), sum(zlib.crc32(each) for each in self._values)

    def send(self, producer: Producer) -> tuple[int, int, Summary]:
        sent = []
        for number, value in enumerate(self._values):
            if number == len(self._values) // 2:
                self._half()
            sent.append(producer.send(self._topic, value))
        for each in sent:
            each.result(PATIENCE)
        return (*self.read(), Summary())


class Query:
    """A streaming query with one topic."""

    def __init__(
        self,
        servers: str,
        topic: str,
        *,
        name: str = "query",
        kind: WriteKind = WriteKind.STREAM,
        prefix: str | None = None,
        timeout_ms: int = 60_000,
        settings: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.topic = topic
        self.name = name
        self._servers = servers
        self._settings = {"bootstrap_servers": servers} if settings is None else settings
        self.setup = Setup(
            Names(prefix or f"of.{topic}", topic),
            kind,
            timeout_ms=timeout_ms,
            ended_at_once=1,
            **options,
        )
        self.control = TransactionControl(**self._settings)
        self._producers: list[Producer] = []
        self._in_use: set[Producer] = set()
        self._commits = 0

    def twin(self, **options: Any) -> Query:
        """Return the same query in another process, as after a restart."""
        return self.restart()(**options)

    def restart(self) -> Callable[..., Query]:
        """Return a function that makes the same query; it keeps nothing of this one alive."""
        return functools.partial(
            Query,
            self._servers,
            self.topic,
            name=self.name,
            kind=self.setup.kind,
            prefix=self.setup.names.prefix,
            timeout_ms=self.setup.timeout_ms,
            settings=self._settings,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for producer in self._producers:
            producer.close(0)
        self.control.close()

    def rows(self, batch: int) -> list[bytes]:
        """Return the rows of a batch."""
        return [b"%d-%d" % (batch, row) for row in range(ROWS)]

    def key(self, batch: int) -> BatchKey:
        return BatchKey(self.name, batch)

    @contextlib.contextmanager
    def producer(self) -> Iterator[Producer]:
        """Yield a producer that is idle, or a new one. One whose task failed is closed."""
        producer = self._producers.pop() if self._producers else self._new()
        self._in_use.add(producer)
        try:
            yield producer
        except BaseException:
            producer.close(0)
            raise
        finally:
            self._in_use.discard(producer)
        self._producers.append(producer)

    def kill(self) -> None:
        """End the tasks that are running, so that they do not abort their transactions."""
        for producer in self._in_use:
            producer.close(0)

    def _new(self) -> Producer:
        return Producer(
            **self._settings,
            transactional_id="replaced by that of the task",
            transaction_timeout_ms=self.setup.timeout_ms,
            retry_backoff_ms=20,
        )

    def task(self, batch: int, layout: Layout, task: int, attempt: int = 0) -> TaskResult:
        """Run a task."""
        values = [each for row, each in enumerate(self.rows(batch)) if layout(row) == task]
        rows = RowsOfTask(self.topic, values, lambda: points.reached("row", task, attempt))
        place = TaskPlace(task, attempt)
        return write_rows(self.setup, self.key(batch), place, rows, self.control, self.producer)

    def stage(self, batch: int, layout: Layout) -> list[TaskResult]:
        """Run all tasks of a batch."""
        tasks = 1 + max(map(layout, range(ROWS)))
        return [self.task(batch, layout, task) for task in range(tasks)]

    def commit(self, batch: int, results: Sequence[TaskResult]) -> None:
        self._commits += 1
        first = self._commits == 1
        BatchCommit(self.setup, self.key(batch), self.control, is_first=first).commit(results)

    def abort(self, batch: int, results: Sequence[TaskResult]) -> bool:
        commit = BatchCommit(self.setup, self.key(batch), self.control, is_first=False)
        return commit.abort(results)

    def write(self, batch: int, layout: Layout = four_tasks) -> None:
        """Write a batch; repeat it if a slow machine has let its transactions time out."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return self.commit(batch, self.stage(batch, layout))
            except TransactionsExpiredError:
                assert time.monotonic() < deadline

    def visible(self) -> Counter[bytes]:
        """Return what a reader of committed messages sees as soon as no transaction is open."""
        return Counter(read(self._servers, self.topic, "read_committed"))

    def open_transactions(self, states: Collection[str] = ("Ongoing",)) -> list[str]:
        """Return the ids of the query whose transactions are in one of *states*."""
        prefix = f"{self.setup.names.prefix}."
        found = self.control.list(prefix, timeout=PATIENCE)
        return [each.transactional_id for each in found if each.state in states]

    def wait_for_timeouts(self) -> None:
        """Wait until the coordinators have ended all transactions that were left open."""
        deadline = time.monotonic() + PATIENCE
        while self.open_transactions(OPEN_STATES):
            assert time.monotonic() < deadline
            tick()


class Paused:
    """A thread that pauses at a point until the test lets it continue."""

    def __init__(
        self, work: Callable[[], object], point: str, task: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self._point = (point, task)
        self._has_arrived, self._may_continue = threading.Event(), threading.Event()
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work,))
        monkeypatch.setattr(points, "reached", self._reached)

    def _run(self, work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            self.error = error

    def _reached(self, name: str, number: int = 0, attempt: int = 0) -> None:
        ours = threading.current_thread() is self._thread
        if ours and (name, number) == self._point and not self._may_continue.is_set():
            self._has_arrived.set()
            assert self._may_continue.wait(PATIENCE)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._has_arrived.wait(PATIENCE), self.error
        return self

    def __exit__(self, *error: object) -> None:
        self.finish()

    def finish(self) -> BaseException | None:
        """Let it continue to its end, and return its error."""
        self._may_continue.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        return self.error


@contextlib.contextmanager
def dies_at(
    query: Query, point: str, task: int, monkeypatch: pytest.MonkeyPatch, *, killed: bool
) -> Iterator[None]:
    """Make the block die at *point*, by an exception, or as if its process were *killed*."""
    died = []

    def reached(name: str, number: int = 0, attempt: int = 0) -> None:
        if (name, number, attempt) == (point, task, 0):
            died.append(name)
            if killed:
                query.kill()
            raise InjectedFault(name)

    with monkeypatch.context() as patched:
        patched.setattr(points, "reached", reached)
        with contextlib.suppress(InjectedFault):
            yield
    assert died == [point]
