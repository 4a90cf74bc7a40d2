"""The driver: decides that a batch is committed, and commits the tasks' transactions.

The decision is the one point at which a batch becomes part of the output. Before it, nothing of the
batch is visible, and the batch can be aborted. After it, the batch can only be completed, by this
driver or by the replay.

1. :meth:`BatchCommit.commit` takes over the driver's transactional id, which fences other drivers.
2. It reads the last decision. If that is about this batch, it completes it.
3. It writes the new decision, in a transaction.
4. It checks that the tasks' transactions are open and have time left, and that what it has read is
   the last decision.
5. It commits the decision.
6. It commits the tasks' transactions (:mod:`~pykaproducer._exactly_once.fates`).
7. It aborts what other attempts have left open.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pykaproducer._exactly_once import points
from pykaproducer._exactly_once.errors import (
    ExactlyOnceError,
    PartialCommitError,
    PrefixInUseError,
    StateMismatchError,
    TransactionsExpiredError,
)
from pykaproducer._exactly_once.fates import (
    ENDED_BEFORE,
    Fate,
    commit_decided,
    of_fate,
    tasks_text,
)
from pykaproducer._exactly_once.records import BatchKey, Decision, Marker, TaskToken
from pykaproducer._exactly_once.recovery import next_decision
from pykaproducer._exactly_once.setup import OnPartialCommit, Setup, WriteKind, check_decision
from pykaproducer._exactly_once.state import SinkState, partitions_of_state_topic
from pykaproducer._exactly_once.task import TaskResult
from pykaproducer._kernel import monotonic
from pykaproducer._util.clock import Clock, held_lock
from pykaproducer.errors import PykaproducerError
from pykaproducer.transaction_control import (
    EndState,
    TransactionControl,
    TransactionDescription,
)
from pykaproducer.transactions import PreparedTransaction

log = logging.getLogger("pykaproducer.exactly_once")

#: The timeout of the driver's transactions (milliseconds), each of which takes some milliseconds.
#: The tasks of a restarted query wait for the end of one that a dead driver has left open, so it is
#: shorter than ``Setup.call_timeout``.
DRIVER_TIMEOUT_MS = 15_000
#: How long the driver repeats the commit of a decision until the coordinator confirms it (seconds).
_DECISION_TIMEOUT = 600.0
#: The time that a task's transaction must have left when the driver decides: a quarter of its
#: timeout, and at most this (milliseconds).
_LEAST_LEFT_MS = 60_000
#: How long the other tasks of a failed write may run before Spark has killed them (seconds). Spark
#: waits for ``spark.python.task.killTimeout``, which is 2 s by default.
_TASKS_END = 3.0


class BatchCommit:
    """The commit, or the abort, of one batch."""

    def __init__(
        self, setup: Setup, key: BatchKey, control: TransactionControl, *, is_first: bool
    ) -> None:
        """Prepare to commit a batch.

        Args:
            setup: the options.
            key: the batch. Its query is empty if nothing in this process knows it: then it is that
                of the last decision.
            control: reads the state, and ends transactions.
            is_first: whether another process may have made the last commit with this prefix, or
                that commit has failed.
        """
        self._setup = setup
        self._names = setup.names
        self._key = key
        self._control = control
        self._state = SinkState(control, setup.names, setup.call_timeout)
        self._is_first = is_first

    def commit(self, results: Sequence[TaskResult]) -> None:
        """Commit the transactions in *results*, which has one result of each task.

        Raises:
            ExactlyOnceError: the batch was not committed, or not entirely; the text says what is
                visible.
            TransactionError, TransactionTimeoutError: the brokers refused a request or did not
                respond. The replay finds out whether the batch was decided, and completes it.
        """
        session = self._initialize()
        last = self._state.decision()
        points.reached("driver-read")
        if last is not None and not self._key.query:
            self._key = self._key._replace(query=last.key.query)
        try:
            check_decision(self._setup, self._key, last, self._elsewhere())
            if last is not None and self._may_be_incomplete(last):
                self._complete_earlier(last)
            fates = self._fates_of_last(last)
            decision = next_decision(
                self._setup, self._key, last, results, fates, self._markers(last, fates, results)
            )
            if last is None and not _tokens(results):
                self._find_state_topic()
            if decision is not None:
                self._write(session, decision, last)
        except ExactlyOnceError:
            self._fence(_tokens(results))
            raise
        if decision is not None:
            self._decide(session, decision)
            self._complete(decision, results)
        last, kept = (last, ()) if decision is None else (decision, decision.tokens)
        self._clean_up(None if self._is_first else last, kept, results)
        points.reached("swept")

    def abort(self, results: Sequence[TaskResult], *, running: bool = False) -> bool:
        """End the open transactions of a batch that failed: of all its tasks, if it is ours.

        They are aborted. Those of a batch that is decided are committed instead.

        Args:
            results: those of the tasks that have ended.
            running: whether other tasks may still run. Spark kills them; what they have begun by
                then is aborted after some seconds.

        Returns:
            bool: whether the batch is decided, so that its rows are visible, or will be: the replay
            completes what could not be committed here.

        Raises:
            StateMismatchError: the state is damaged.
            TransactionError, TransactionTimeoutError: the brokers refused a request or did not
                respond. The transactions then time out.
        """
        until = monotonic() + _TASKS_END
        if self._is_of_others(self._state.decision()):
            self._fence(_tokens(results))
            return False
        # Afterwards, a decision that a dead driver has left open is either committed or aborted.
        self._initialize()
        last = self._state.decision()
        decided = (
            last is not None
            and last.key.batch == self._key.batch
            and self._key.query in (last.key.query, "")
        )
        if last is not None and decided:
            brief = replace(self._setup, timeout_ms=int(self._setup.call_timeout * 1000))
            with contextlib.suppress(PykaproducerError):  # the caller raises why the commit failed
                commit_decided(last, brief, self._control, self._state)
            self._clean_up(None, last.tokens, results)
        else:
            self._fence(_tokens(results))
            self._sweep(None)
        if running:
            Clock().acquire(held_lock(), until)
            self._sweep(None)
        return decided

    def _is_of_others(self, last: Decision | None) -> bool:
        """Return whether another query or driver uses the prefix, after the decision *last*.

        The tasks may have failed because of it. It must not be stopped.
        """
        if self._setup.kind is WriteKind.SINGLE:
            return last is not None and last.key.batch > 0  # the batches of a query are numbered
        elsewhere = self._state.elsewhere()
        if self._key.query:
            keys = [*elsewhere.values(), *([] if last is None else [last.key])]
            is_ours = all(each.query in (self._key.query, "") for each in keys)
            return not is_ours or (last is not None and last.key.batch > self._key.batch)
        # No task has a result, so the id of the query is unknown.
        if last is None:
            return bool(elsewhere)
        return last.key.batch not in (self._key.batch - 1, self._key.batch)

    # Steps ---------------------------------------------------------------------------------------

    def _find_state_topic(self) -> None:
        # No task has sent a row, for which brokers would have created the topic.
        partitions_of_state_topic(
            self._control.config,
            self._names.state_topic,
            self._setup.call_timeout,
            create=self._setup.may_create_state_topic
            and self._control.config.allow_auto_create_topics,
        )

    def _elsewhere(self) -> dict[str, BatchKey]:
        # Without results the id of the query is not known.
        return self._state.elsewhere() if self._key.query else {}

    def _initialize(self) -> PreparedTransaction:
        session = self._control.initialize(
            self._names.driver, DRIVER_TIMEOUT_MS, timeout=self._setup.call_timeout
        )
        points.reached("driver-initialized")
        return session

    def _fates_of_last(self, last: Decision | None) -> dict[int, Fate]:
        """Complete *last* if it is about this batch, and return the fates of its transactions."""
        if last is None or last.key != self._key:
            return {}
        return commit_decided(last, self._setup, self._control, self._state)

    def _markers(
        self, last: Decision | None, fates: Mapping[int, Fate], results: Sequence[TaskResult]
    ) -> dict[int, Marker]:
        """Return the markers of the tasks of *last* that are committed; empty if all are."""
        committed = of_fate(fates, Fate.COMMITTED)
        if last is None or len(committed) == len(fates):
            return {}
        # A stable read waits for open transactions that contain the markers: of attempts of a
        # driver that was killed, and of tasks that have written their rows again. This process has
        # to end both.
        self._sweep(None, _tokens(results))
        open_ones = {each.task for each in results if each.token is not None}
        found = {}
        for stable in (True, False):
            tasks = [task for task in committed if (task not in open_ones) == stable]
            found.update(self._state.markers(tasks, last.partitions, stable=stable))
        return {task: each for task, each in found.items() if each.key == last.key}

    def _may_be_incomplete(self, last: Decision) -> bool:
        """Return whether *last* is an earlier write that may not be repeated until it is complete.

        A stream repeats its batches. A program in ``foreachBatch`` may leave one out.
        """
        if last.key.query != self._key.query:
            return True
        is_earlier = last.key != self._key
        return is_earlier and self._is_first and self._setup.kind is WriteKind.NUMBERED

    def _complete_earlier(self, last: Decision) -> None:
        """Complete the write before this one: its decision is about to be replaced."""
        lost = of_fate(commit_decided(last, self._setup, self._control, self._state), Fate.LOST)
        if not lost or len(lost) == len(last.tokens):
            return
        single = self._setup.kind is WriteKind.SINGLE
        what = f"writeId {last.key.query!r}" if single else f"batch {last.key.batch}"
        found = (
            f"the write before this one, {what}, is visible in part: the transactions of "
            f"{tasks_text(lost)} ended before they were committed"
        )
        if self._setup.on_partial_commit is not OnPartialCommit.SKIP:
            raise PartialCommitError(
                f"{found}. Nothing of this write is visible. Write the one before again, with the "
                f"same {'writeId' if single else 'number'}; or set onPartialCommit to skip (the "
                f"lost rows stay lost)"
            )
        log.warning("%s. onPartialCommit is skip: the lost rows stay lost", found)

    def _write(
        self, session: PreparedTransaction, decision: Decision, last: Decision | None
    ) -> None:
        """Write *decision* in the transaction *session*, and check that it may be committed.

        Raises:
            StateMismatchError: *last* is not the last decision.
            TransactionsExpiredError: as of :meth:`_check_open`.
        """
        began = monotonic()
        self._state.decide(session, decision)
        points.reached("written")
        try:
            # 1. A broker is replaced as the group's coordinator, and does not know it yet. 2. It
            # returns an old decision. 3. Only the new coordinator, which has all of the state,
            # accepts the write, and so it answers this read.
            if self._state.decision(stable=False) != last:
                raise StateMismatchError(
                    f"{self._what}: the broker that returned the last decision "
                    f"was not up to date. Nothing of this attempt is visible. "
                    f"{self._once_more}: that writes it, or finds it written"
                )
            self._check_open(session, decision, last, began)
        except ExactlyOnceError:
            self._control.complete(session, commit=False, timeout=self._setup.call_timeout)
            raise

    def _check_open(
        self,
        session: PreparedTransaction,
        decision: Decision,
        last: Decision | None,
        began: float,
    ) -> None:
        """Check that the transactions to be decided are open, and can be committed in time.

        *began* is when *session* began (monotonic seconds). Brokers report that time by their
        clocks, which may differ from this machine's.

        Raises:
            TransactionsExpiredError: they are not, or cannot.
        """
        done = () if last is None or last.key != decision.key else last.tokens
        new = [each for each in decision.tokens if each not in done]
        found = self._control.describe(
            [session.transactional_id, *(self._id(each) for each in new)],
            timeout=self._setup.call_timeout,
        )
        own, elapsed = found[session.transactional_id], (monotonic() - began) * 1000
        if not _is_open(own, session):
            new = []  # committing it will fail, and that error has the reason
        for token in new:
            each = found[self._id(token)]
            passed = own.start_ms + elapsed - each.start_ms
            if not _is_open(each, token):
                raise TransactionsExpiredError(
                    f"{self._what}: the transaction of task {token.task} is not open any more. "
                    f"{self._too_long(done)}"
                )
            if each.timeout_ms - passed < _least_left_ms(each.timeout_ms):
                raise TransactionsExpiredError(
                    f"{self._what}: task {token.task} began its transaction "
                    f"{passed / 1000:.0f} s ago, and it times out after "
                    f"{each.timeout_ms / 1000:.0f} s. {self._too_long(done)}"
                )
        points.reached("checked")

    @property
    def _is_single(self) -> bool:
        return self._setup.kind is WriteKind.SINGLE

    @property
    def _what(self) -> str:
        return self._setup.what(self._key)

    @property
    def _once_more(self) -> str:
        return self._setup.once_more(self._key)

    def _too_long(self, done: Sequence[TaskToken]) -> str:
        timeout_ms = self._setup.timeout_ms
        most = (timeout_ms - _least_left_ms(timeout_ms)) / 1000
        again = "start it again" if self._is_single else "the replay writes the batch again"
        visible = f"Nothing is visible; {again}"
        if done:
            visible = (
                f"Nothing of this attempt is visible, but rows that were committed before are. "
                f"{self._once_more} with the same parallelism: that writes what is missing"
            )
        smaller = "write fewer rows at once" if self._is_single else "make batches smaller"
        return (
            f"{visible}. With kafka.transaction.timeout.ms ({timeout_ms} ms) a "
            f"stage may take {most:g} s. If it takes longer, {smaller}, or raise the timeout and "
            f"the brokers' transaction.max.timeout.ms"
        )

    def _id(self, token: TaskToken) -> str:
        return self._names.task(token.task, token.attempt)

    def _decide(self, session: PreparedTransaction, decision: Decision) -> None:
        """Commit *decision*, which is written: from here on, the batch counts."""
        ended = self._control.complete(session, commit=True, timeout=_DECISION_TIMEOUT)
        if ended.state is not EndState.COMMITTED:
            reason = ended.reason or "its transaction timed out"
            if ended.state is EndState.UNSURE and ended.code in ENDED_BEFORE:
                raise PrefixInUseError(
                    f"{self._what}: another driver with transactionalIdPrefix "
                    f"{self._names.prefix!r} took over, or this one was too slow ({reason}). If "
                    f"the decision to commit it was committed before, that driver or the replay "
                    f"completes it. Let only one driver use the prefix"
                )
            raise ExactlyOnceError(
                f"{self._what}: the decision to commit it was not confirmed ({reason}). "
                f"{self._once_more}: that completes it if the decision was committed, and "
                f"otherwise writes it again"
            )
        points.reached("decided")

    def _complete(self, decision: Decision, results: Sequence[TaskResult]) -> None:
        """Commit the transactions of *decision*, which is committed."""
        fates = commit_decided(decision, self._setup, self._control, self._state)
        lost = of_fate(fates, Fate.LOST)
        if lost and self._state.decision() != decision:
            # Tasks of the other driver may have replaced the markers: LOST is not certain.
            raise PrefixInUseError(
                f"{self._setup.what(decision.key)}: another driver with transactionalIdPrefix "
                f"{self._names.prefix!r} took over after it was decided, and completes it"
            )
        if lost:
            rows = sum(each.rows for each in results if each.task in lost)
            raise PartialCommitError(
                f"{self._what}: the rows of {tasks_text(lost)} ({rows:,} rows) are missing, "
                f"because another process has ended their transactions, or they timed out. The "
                f"rows of the other tasks ({decision.rows - rows:,}) are visible. "
                f"{self._once_more} with the same parallelism: that writes the missing rows"
            )
        points.reached("completed")

    # Cleaning up ---------------------------------------------------------------------------------

    def _clean_up(
        self,
        last: Decision | None,
        kept: Sequence[TaskToken],
        results: Sequence[TaskResult],
    ) -> None:
        """Abort what the attempts of a batch, which is complete, have left open."""
        try:
            self._fence([each for each in _tokens(results) if each not in kept])
            self._sweep(last)
        except PykaproducerError as error:
            # A failure here would let a batch that is visible be repeated.
            log.warning(
                "%s is committed. Transactions that other attempts may have left open were not "
                "aborted, and delay readers until they time out: %s",
                self._what,
                error,
            )

    def _fence(self, tokens: Sequence[TaskToken]) -> None:
        """Abort the transactions of *tokens* that are open.

        This is done with InitProducerId, which gives the id another epoch. An abort with EndTxn
        would not stop a task that is still running:

        1. A Produce request of the task is delayed in the network.
        2. The driver aborts the transaction.
        3. The request arrives. In the first transaction protocol its epoch is still valid, so the
           broker appends its rows to a transaction that no process ends. Readers of committed
           messages wait for it.

        If the query was restarted in the meantime, an id may have another transaction open, which
        is left alone.
        """
        ids = {self._id(each): each for each in tokens}
        found = self._control.describe(ids, timeout=self._setup.call_timeout) if ids else {}
        self._control.fence(
            [name for name, each in found.items() if _is_open(each, ids[name])],
            timeout=self._setup.call_timeout,
        )

    def _sweep(self, last: Decision | None, kept: Sequence[TaskToken] = ()) -> None:
        """Abort transactions left open by attempts whose results the driver does not have.

        They would delay readers of committed messages until they time out. What is decided stays:
        this may be the last act of a driver that was replaced, or the write before may have died
        before it was complete.

        Args:
            last: looks for its tasks, and for the attempts up to the one after the greatest that is
                known, which may have failed. None: asks all brokers for all tasks.
            kept: stay open, too.
        """
        timeout = self._setup.call_timeout
        if last is None:
            listed = self._control.list(f"{self._names.prefix}.", ["Ongoing"], timeout=timeout)
            names = {*filter(self._names.is_task, (each.transactional_id for each in listed))}
        else:
            attempts = range(last.most_attempts + 2)
            names = {self._names.task(task, a) for task in range(last.tasks) for a in attempts}
        found = self._control.describe(sorted(names), timeout=timeout)
        open_ones = {name: each for name, each in found.items() if each.state == "Ongoing"}
        if not open_ones:
            return
        decided = self._state.decision()
        for token in [*kept, *(() if decided is None else decided.tokens)]:
            each = open_ones.get(self._id(token))
            if each is not None and _is_open(each, token):
                del open_ones[self._id(token)]
        self._control.fence(open_ones, timeout=timeout)


def _is_open(found: TransactionDescription, token: TaskToken | PreparedTransaction) -> bool:
    """Return whether the transaction of *token* is open, after the description of its id."""
    ours = token.producer_id, token.producer_epoch
    return found.state == "Ongoing" and (found.producer_id, found.producer_epoch) == ours


def _least_left_ms(timeout_ms: float) -> float:
    """Return the time that a transaction with this timeout must have left when it is decided."""
    return min(_LEAST_LEFT_MS, timeout_ms / 4)


def _tokens(results: Sequence[TaskResult]) -> list[TaskToken]:
    return [each.token for each in results if each.token is not None]
