"""The methods of the producer that compiled code calls, in one place.

``send()``, ``send_many()`` and ``send_arrow()`` are compiled (``_kernel_parts/admission.pxi`` and
``block_admission.pxi``). They call these methods on rare occasions: for the first message, a new
topic, an object that is not bytes, a full buffer, an error. ``_kernel.Admission`` finds them by
name.
"""

from __future__ import annotations

import _thread
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from pykaproducer._errors.formatting import check_topic
from pykaproducer._kernel import Account, TopicSlot, Turn
from pykaproducer._net.transport import Network
from pykaproducer._observability.observed_producer import ObservedProducer
from pykaproducer._pipeline.admission_functions import AdmissionFunctions
from pykaproducer._pipeline.last_errors import NO_ANSWER
from pykaproducer._pipeline.wiring import Pipeline
from pykaproducer._process import lifecycle
from pykaproducer._util.clock import held_lock
from pykaproducer._util.guarded_log import GuardedLogger
from pykaproducer._util.serializing import serialized
from pykaproducer.block import BlockProducer, RefusedRows
from pykaproducer.config import Config
from pykaproducer.delivery import ProducerRef
from pykaproducer.errors import (
    BufferFullError,
    MessageTooLargeError,
    ProducerBrokenError,
    ProducerClosedError,
    Status,
)

if TYPE_CHECKING:
    from pykaproducer._machines.transaction_states import TransactionFailure

log = GuardedLogger("pykaproducer.producer")


class AdmissionHooks(BlockProducer, ObservedProducer):
    """Starting the producer, waiting for space, and the errors of a message."""

    # Set by Producer, beside what ObservedProducer declares.
    _network_type: Callable[[Config], Network]
    _ref: ProducerRef
    #: The pipeline under a fixed key, for setdefault(), which no signal can interrupt.
    _made: dict[str, Pipeline]

    if TYPE_CHECKING:

        def open_transaction(self, serial: int) -> None: ...
        def shut_transaction(self, failure: TransactionFailure) -> None: ...
        def _check_transaction(self) -> None: ...

    # Starting ------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Start on first use, or raise if no message is accepted."""
        self._ensure_started()
        if self.config.transactional_id is None:
            self._admit()
        else:
            self._check_transaction()  # the coordinator's stage admits
        # Check again after _admit(): close() sets _closed first and shuts admission second.
        self._check_not_closed()

    def _ensure_started(self) -> None:
        """Start on first use, or raise if closed.

        May run concurrently in several threads and be interrupted by a signal handler that closes
        the producer. Lock-free: the first pipeline created wins, and ``_shut()`` is final.
        """
        self._check_not_closed()
        pipeline = self._pipeline
        if pipeline is None:
            lifecycle.before_first_start()
            made = Pipeline(
                self.config,
                self._clock,
                self._network_type(self.config),
                self._name,
                AdmissionFunctions(
                    take=self._take,
                    take_all=self._take_all,
                    take_callers=self._take_callers,
                    release_slot=self._let_go,
                    on_broken=self._broke,
                    transactions=self,
                ),
                self._metrics,
            )
            pipeline = self._made.setdefault("pipeline", made)
            self._ref.in_own_thread = pipeline.own_threads()
            self._ref.reason_for = pipeline.reasons()
            self._ref.end_lingering = pipeline.lingering_ender()
            self._pipeline = pipeline
            if pipeline is made:
                self._end_lingering_when_full(pipeline)
                self._start_observing()
                lifecycle.warn_of_many()
        if pipeline.broken is not None:
            self._refuse_broken(pipeline.broken)

    def _check_not_closed(self) -> None:
        if self._closed and not self._may_still_send():
            raise ProducerClosedError("the producer is closed")

    def _may_still_send(self) -> bool:
        """Return whether this is a callback while ``close()`` waits (``_process/closing.py``)."""
        pipeline = self._pipeline
        return (
            self._closing
            and pipeline is not None
            and pipeline.reports.thread is threading.current_thread()
        )

    def _announce(self, slots: TopicSlot | list[TopicSlot]) -> bool:
        """Announce the open chunks of topics. Return False if the next message must repeat that."""
        pipeline = self._pipeline
        # None: close() removed it between the append and this call, and has found the chunk.
        return pipeline is None or pipeline.dispatcher.announce(slots)

    # One message -------------------------------------------------------------------------------

    def _check_topic(self, topic: object) -> None:
        check_topic(topic)

    def _too_large(self, topic: str | None, size: int, row: int | None = None) -> NoReturn:
        limit = f"max_request_size allows {self.config.max_request_size}"
        if size <= self.config.max_request_size:
            limit = f"buffer_memory is {self._budget.limit} bytes"
        where = "" if topic is None else f"topic {topic!r}: "
        raise MessageTooLargeError(
            f"{where}the message needs {size} bytes, but {limit}; send a smaller message, or raise "
            f"{limit.split()[0]}",
            row=row,
        )

    def _serialize(self, topic: str, key: Any, value: Any, headers: Any) -> tuple[Any, Any]:
        return (
            serialized("key_serializer", self.config.key_serializer, topic, headers, key),
            serialized("value_serializer", self.config.value_serializer, topic, headers, value),
        )

    def _block_refused(self, error: BaseException, transaction: int) -> None:
        # The program learns of it from the block, so the transaction must not be committed.
        pipeline = self._pipeline
        if pipeline is not None and pipeline.coordinator is not None:
            pipeline.coordinator.row_failed(error, transaction)

    def _rows_refused(self, rows: RefusedRows) -> None:
        pipeline = self._pipeline
        # None: close() has removed it and logged the failures.
        if pipeline is not None:
            pipeline.settler.refuse(rows, rows)
        else:
            log.error("%d rows of a block were not accepted: %s", rows.count, rows.error)

    # Space in buffer_memory ---------------------------------------------------------------------

    def _may_wait(self, amount: int) -> _thread.LockType | None:
        """Return a lock for waiting for ``buffer_memory``, or None in a callback."""
        self._space.check_can_ever_fit(amount)
        if self._ref.in_own_thread():
            return None
        return held_lock()

    def _end_lingering_when_full(self, pipeline: Pipeline) -> None:
        space = self._space
        full = weakref.WeakMethod(pipeline.buffer_is_full)  # the pipeline refers to the space

        def on_full() -> None:
            notify = full()
            if notify is not None:
                notify()

        budget = self._budget
        budget.lingers = self.config.linger_ms > 0
        pipeline.space_wanted = lambda: space.wanted or budget.ends_lingering
        space.on_full = on_full

    def _wait_for_space(self, turn: Turn) -> None:
        space = self._space

        def is_open() -> bool:
            # A new object: a signal handler has forked, in the child.
            return self._ready and self._transaction == turn.transaction and self._space is space

        def reason(topic: str) -> str | None:
            pipeline = self._pipeline
            found = None if pipeline is None else pipeline.last_errors.reason_for_any(topic)
            return None if found == NO_ANSWER else found

        space.wait(turn, is_open, reason)

    def _buffer_is_full(self, amount: int, account: Account | None) -> NoReturn:
        self._space.lacks(amount)
        raise BufferFullError(
            f"{self._space.why_full(amount, account)}; send() cannot wait for space in a callback "
            f"or partitioner, because the wait might block the thread that frees it",
            topic=None if account is None else account.topic,
        )

    def _broke(self) -> None:
        self._shut()
        self._space.wake_all()

    def _refuse_broken(self, cause: BaseException) -> NoReturn:
        raise ProducerBrokenError(
            "the producer is broken by an internal error; create a new one",
            status=Status.NOT_PERSISTED,
            cause=cause,
        )
