"""A machine of a transactional producer, driven by hand, in each of its states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pykaproducer._machines.coordination import TV1, TV2, CommitOutcome, Coordination, Reaction
from pykaproducer._machines.sequencing import ProducerId
from pykaproducer._machines.transaction_effects import (
    AnswerCaller,
    CommitOffsets,
    Effect,
    LeaveCoordinator,
    PublishView,
    Request,
    SendAddOffsets,
    SendAddPartitions,
    SendDescribeTransactions,
    SendEndTxn,
    SendFindCoordinator,
    SendInitProducerId,
)
from pykaproducer._machines.transaction_states import CallRefused, FailureKind, TransactionFailure
from pykaproducer._machines.transaction_states import TransactionState as S
from pykaproducer._machines.transactions import TransactionMachine
from pykaproducer._wire.messages import ApiKey

REQUESTS = (
    SendFindCoordinator,
    SendInitProducerId,
    SendAddPartitions,
    SendAddOffsets,
    SendEndTxn,
    SendDescribeTransactions,
)
NOT, POSSIBLY, COMMITTED = (
    CommitOutcome.NOT_COMMITTED,
    CommitOutcome.POSSIBLY_COMMITTED,
    CommitOutcome.COMMITTED,
)
DONE = Coordination(Reaction.DONE, ApiKey.TXN_OFFSET_COMMIT)
BOTH = pytest.mark.parametrize("protocol", [TV1, TV2])

TIMEOUT = 60.0
MAX_BLOCK = 30.0
END_TXN, INIT = ApiKey.END_TXN, ApiKey.INIT_PRODUCER_ID
GIVEN = ProducerId(7, 0)


def refused(call: Callable[[], object]) -> TransactionFailure:
    """Call and return the failure."""
    with pytest.raises(CallRefused) as found:
        call()
    return found.value.failure


class Driver:
    """Gives events to a machine, and checks what holds for each of them."""

    def __init__(self, protocol: int, *, waits_for_callbacks: bool = False) -> None:
        self.protocol = protocol
        self.machine = TransactionMachine(
            "orders",
            timeout=TIMEOUT,
            max_block=MAX_BLOCK,
            backoff_first=0.1,
            backoff_most=1.0,
            random=lambda: 0.5,
            waits_for_callbacks=waits_for_callbacks,
        )
        self.now = 0.0
        self.request: Request | None = None
        self.effects: list[Effect] = []
        self.answers: dict[Any, AnswerCaller] = {}

    def do(self, effects: list[Effect]) -> list[Effect]:
        """Check and note *effects*."""
        self.effects = effects
        for effect in effects:
            if isinstance(effect, LeaveCoordinator):
                self.request = None
            elif isinstance(effect, REQUESTS):
                assert self.request is None, f"{effect} while {self.request} is under way"
                self.request = effect
            elif isinstance(effect, AnswerCaller):
                assert effect.caller not in self.answers, "answered twice"
                self.answers[effect.caller] = effect
            elif isinstance(effect, PublishView):
                last = effect.view
        if any(isinstance(effect, PublishView) for effect in effects):
            assert last is self.machine.view
        return effects

    def answer(self, code: int = 0, producer: ProducerId | None = None) -> list[Effect]:
        """Answer the request under way."""
        request, self.request = self.request, None
        assert request is not None
        if isinstance(request, SendFindCoordinator):
            if code:
                return self.do(self.machine.coordinator_not_found(code, self.now))
            return self.do(self.machine.coordinator_found(self.protocol, self.now))
        if isinstance(request, SendAddPartitions):
            codes = dict.fromkeys(request.partitions, code)
            return self.do(self.machine.partitions_answered(codes, self.now))
        if isinstance(request, SendInitProducerId) and producer is None:
            before = request.producer
            producer = GIVEN if before is None else ProducerId(before.producer_id, before.epoch + 1)
        if isinstance(request, SendDescribeTransactions) and not code:
            return self.do(self.machine.described(complete=True, now=self.now))
        return self.do(self.machine.answered(request.api_key, code, self.now, producer=producer))

    def end(self, code: int = 0) -> list[Effect]:
        """Answer EndTxn as the coordinator of this protocol does."""
        assert isinstance(self.request, SendEndTxn)
        before = self.request.producer
        bumped = self.protocol != TV1 and not code
        return self.answer(
            code, ProducerId(before.producer_id, before.epoch + 1) if bumped else None
        )

    def describe(self, *, complete: bool) -> list[Effect]:
        """Answer the question whether the last transaction has ended."""
        assert isinstance(self.request, SendDescribeTransactions)
        self.request = None
        return self.do(self.machine.described(complete=complete, now=self.now))

    def lose(self, *, written: bool = True) -> list[Effect]:
        """Lose the connection to the coordinator, or fail to connect."""
        request, self.request = self.request, None
        if isinstance(request, SendFindCoordinator):
            return self.do(self.machine.coordinator_not_found(None, self.now))
        return self.do(self.machine.connection_lost(self.now, written=written))

    def wait(self) -> list[Effect]:
        """Let the time pass until something is due."""
        due = self.machine.next_due()
        assert due is not None
        self.now = max(self.now, due)
        return self.do(self.machine.time_passed(self.now))

    def retry(self) -> None:
        """Let the time pass until a request is sent again, and find the coordinator if needed."""
        if self.request is None:
            self.wait()
        if isinstance(self.request, SendFindCoordinator):
            self.answer()

    def failure(self, caller: Any) -> TransactionFailure:
        """Return the failure that *caller* got."""
        found = self.answers[caller].failure
        assert found is not None
        return found

    def failed(self, caller: Any) -> tuple[FailureKind, CommitOutcome | None]:
        """Return the kind and the outcome of the failure that *caller* got."""
        found = self.failure(caller)
        return found.kind, found.outcome

    def only(self, kind: type[Any]) -> Any:
        """Return the only effect of *kind* of the last event."""
        (found,) = (effect for effect in self.effects if isinstance(effect, kind))
        return found

    def has(self, kind: type[Any]) -> bool:
        """Return whether the last event had an effect of *kind*."""
        return any(isinstance(effect, kind) for effect in self.effects)

    # Ways to a state -----------------------------------------------------------------------------

    def initialize(self, caller: Any = "init") -> Driver:
        self.do(self.machine.init(caller, self.now))
        self.answer()
        self.answer()
        return self

    def begin(self, *, write: bool = True) -> Driver:
        self.do(self.machine.begin(self.now))
        if write:
            self.write()
        return self

    def write(self) -> None:
        """Write a batch of a partition, after it was added if the protocol requires it."""
        if self.protocol == TV1:
            self.do(self.machine.partition_wanted(self.machine.serial, "t", 0, self.now))
            self.answer()
            assert ("t", 0) in self.machine.view.added
        self.machine.view.touch.set(self.now)

    def spoil(self) -> Driver:
        self.do(self.machine.row_failed(self.machine.serial, "cause", self.now))
        return self

    def settle(self) -> Driver:
        self.do(self.machine.all_settled(self.machine.serial, self.now))
        return self

    def abort(self, *, spent: bool = False) -> Driver:
        """Abort, up to EndTxn."""
        self.do(self.machine.abort("abort", self.now))
        return self.drain(spent=spent)

    def drain(self, *, spent: bool = False) -> Driver:
        """Let the batches be answered for which the first protocol waits."""
        if self.machine.state is S.DRAINING:
            self.do(self.machine.drained(self.machine.serial, self.now, spent=spent))
        return self

    def offsets(self, caller: Any, deadline: float | None = None) -> int:
        """Commit an offset, up to the request to the group; return its number."""
        self.do(self.machine.offsets(caller, "g", {"t": 1}, self.now, deadline))
        if isinstance(self.request, SendAddOffsets):
            self.answer()
        number: int = self.only(CommitOffsets).number
        return number

    def offsets_answered(self, number: int, found: Coordination = DONE) -> None:
        self.do(self.machine.offsets_answered(self.machine.serial, number, found, self.now))


def _initializing(driver: Driver) -> None:
    driver.do(driver.machine.init("init", driver.now))


def _flushing(driver: Driver) -> None:
    driver.initialize().begin()
    driver.do(driver.machine.commit("commit", driver.now))


def _draining(driver: Driver) -> None:
    driver.initialize().begin()
    driver.do(driver.machine.abort("abort", driver.now))


def _prepared(driver: Driver) -> None:
    driver.initialize().begin()
    driver.do(driver.machine.prepare("prepare", driver.now))
    driver.settle()


def _fatal(driver: Driver) -> None:
    driver.initialize().begin()
    serial = driver.machine.serial
    driver.do(driver.machine.row_failed(serial, "cause", driver.now, code=49, fatal=True))


def _ending_commit(driver: Driver) -> None:
    _flushing(driver)
    driver.settle()


WAYS: dict[S, Callable[[Driver], object]] = {
    S.UNINITIALIZED: lambda driver: None,
    S.INITIALIZING: _initializing,
    S.READY: lambda driver: driver.initialize(),
    S.IN_TRANSACTION: lambda driver: driver.initialize().begin(),
    S.FLUSHING: _flushing,
    S.ENDING_COMMIT: _ending_commit,
    S.ABORTABLE: lambda driver: driver.initialize().begin().spoil(),
    S.DRAINING: _draining,
    S.ENDING_ABORT: lambda driver: driver.initialize().begin().abort(),
    S.PREPARED: _prepared,
    S.FATAL: _fatal,
}


def at(state: S, protocol: int) -> Driver:
    """Return a machine in *state*."""
    driver = Driver(protocol)
    WAYS[state](driver)
    assert driver.machine.state is state
    return driver


def contents(thing: Any) -> Any:
    """Return everything in *thing*, to be compared."""
    if isinstance(thing, dict):
        return [(contents(key), contents(value)) for key, value in thing.items()]
    if isinstance(thing, list | tuple | set | frozenset):
        return [contents(each) for each in thing]
    names = [*getattr(thing, "__dict__", ()), *getattr(type(thing), "__slots__", ())]
    if not type(thing).__module__.startswith("pykaproducer") or not names:
        return repr(thing) if not callable(thing) else ""
    return type(thing).__name__, [(name, contents(getattr(thing, name))) for name in names]
