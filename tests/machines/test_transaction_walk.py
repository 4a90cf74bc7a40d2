"""A transactional producer, whatever its callers, its rows and its coordinator do.

One of the things that may happen next is chosen at random, again and again. The coordinator is a
simple model: it carries out EndTxn or does not, and its answer arrives or is lost.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from pykaproducer._machines.coordination import TV1, TV2, CommitOutcome, coordinate
from pykaproducer._machines.transaction_effects import (
    AnswerCaller,
    CommitOffsets,
    DrainBatches,
    Effect,
    FailRows,
    GiveUpOffsets,
    OpenAdmission,
    SendAddOffsets,
    SendAddPartitions,
    SendEndTxn,
    SendFindCoordinator,
    SendInitProducerId,
    ShutAdmission,
    WatchRows,
)
from pykaproducer._machines.transaction_states import OPEN, CallRefused, FailureKind
from pykaproducer._machines.transaction_states import TransactionState as S
from pykaproducer._wire.messages import ApiKey
from tests._support.fixtures.seeds import SEED

from .transaction_helper import Driver

AT_REST = {S.READY, S.UNINITIALIZED, S.PREPARED, S.FATAL}
NOT, POSSIBLY, COMMITTED = (
    CommitOutcome.NOT_COMMITTED,
    CommitOutcome.POSSIBLY_COMMITTED,
    CommitOutcome.COMMITTED,
)
#: Answers with which a coordinator refuses to do anything.
TEMPORARY = (14, 13, 15, 16, 51)
#: Answers after which it may have carried out EndTxn.
DOUBTFUL = (7, -1, 14, 15, 16)
FINAL = (90, 49, 53, 999)


class Walk:
    """One machine, its callers, and a model of everything around it."""

    def __init__(self, protocol: int) -> None:
        self.driver = Driver(protocol)
        self.machine = self.driver.machine
        self.callers = 0
        #: Caller -> the transaction that was open or last.
        self.waiting: dict[int, int] = {}
        self.over: set[int] = set()
        self.watched: int | None = None
        self.draining: int | None = None
        self.offsets: list[CommitOffsets] = []
        self.admitting = False
        #: Transactions that the coordinator has committed, or aborted.
        self.committed: set[int] = set()
        self.aborted: set[int] = set()
        self.spoiled: set[int] = set()
        self.reported: dict[int, CommitOutcome] = {}
        self.began_with: dict[int, int] = {}
        #: The protocol of an EndTxn(commit) whose outcome is not known, by transaction.
        self.ended_as: dict[int, int] = {}
        #: The state of the last EndTxn(commit), as the client can know it.
        self.in_doubt = False
        self.prepared: set[int] = set()
        #: Rows of the last transaction may be without outcome.
        self.unsettled = False

    # What may happen -----------------------------------------------------------------------------

    def actions(self) -> list[Callable[[], None]]:
        found: list[Callable[[], None]] = []
        for name in ("init", "commit", "commit", "commit", "prepare", "abort"):
            found.append(lambda name=name: self.call(name))  # type: ignore[misc]
        found += [self.begin] * 3
        found += [self.time, lambda: self.call("close", self.driver.now + 20.0)]
        found.append(lambda: self.call("offsets", "g", 1))
        found.append(lambda: self.call("commit", self.driver.now + 0.05))
        found.append(self.give_offsets)
        if self.waiting:
            found.append(self.leave)
        if self.machine.state in OPEN:
            found += [self.write] * 3
            found.append(lambda: self.fail(fatal=self.callers % 8 == 7))
        if self.watched is not None:
            found += [self.settle] * 4
        if self.draining is not None:
            found += [lambda: self.drain(spent=False), lambda: self.drain(spent=True)] * 2
        for code in (0, 0, 0, 0, 22):
            if self.offsets:
                found.append(lambda code=code: self.commit_offsets(code))  # type: ignore[misc]
        if self.driver.request is None:
            found.append(self.reconnect)
        else:
            found += self.answers() * 2
        return found

    def answers(self) -> list[Callable[[], None]]:
        found: list[Callable[[], None]] = [self.good_answer] * 8
        found += [lambda: self.lose(written=False), lambda: self.lose(written=True)]
        request = self.driver.request
        if isinstance(request, SendFindCoordinator | SendInitProducerId):
            codes = [*TEMPORARY, 53]
        else:
            found.append(lambda: self.lose(written=True, done=True))
            codes = [*TEMPORARY, *DOUBTFUL, 120, *FINAL]
        if isinstance(request, SendEndTxn) and not self.done_before():
            codes += [48, 48]  # no coordinator answers so to the retry of a commit
        if isinstance(request, SendInitProducerId) and request.producer is not None:
            codes.append(90)
        for code in codes:
            found.append(lambda code=code: self.answer(code))  # type: ignore[misc]
        if isinstance(request, SendEndTxn):
            for code in DOUBTFUL:
                found.append(lambda code=code: self.answer(code, done=True))  # type: ignore[misc]
        return found

    # Callers -------------------------------------------------------------------------------------

    def call(self, name: str, *args: Any) -> None:
        self.callers += 1
        caller = self.callers
        self.waiting[caller] = self.machine.serial
        now = self.driver.now
        method = getattr(self.machine, name)
        try:
            if name == "offsets":
                effects = method(caller, *args, now)
            else:
                effects = method(caller, now, *args)
        except CallRefused:
            del self.waiting[caller]
            return
        if name == "prepare" and self.machine.state is S.FLUSHING:
            self.prepared.add(self.machine.serial)
        self.do(effects)

    def begin(self) -> None:
        try:
            effects = self.machine.begin(self.driver.now)
        except CallRefused:
            return
        serial = self.machine.serial
        assert serial - 1 not in self.committed or self.reported[serial - 1] is COMMITTED
        self.began_with[serial] = self.machine.protocol
        self.in_doubt = False
        self.unsettled = True
        self.watched = self.draining = None
        self.do(effects)

    def leave(self) -> None:
        caller = min(self.waiting)
        self.machine.caller_left(caller)
        del self.waiting[caller]

    # Rows and offsets ----------------------------------------------------------------------------

    def write(self) -> None:
        serial, view = self.machine.serial, self.machine.view
        if view.protocol == TV2 or ("t", 0) in view.added:
            view.touch.set(self.driver.now)
        else:
            self.do(self.machine.partition_wanted(serial, "t", 0, self.driver.now))

    def fail(self, *, fatal: bool) -> None:
        self.do(self.machine.row_failed(self.machine.serial, "x", self.driver.now, fatal=fatal))

    def settle(self) -> None:
        serial, self.watched = self.watched, None
        assert serial is not None
        if serial == self.machine.serial:
            self.unsettled = False
        self.do(self.machine.all_settled(serial, self.driver.now))

    def drain(self, *, spent: bool) -> None:
        serial, self.draining = self.draining, None
        assert serial is not None
        self.do(self.machine.drained(serial, self.driver.now, spent=spent))

    def give_offsets(self) -> None:
        """Give offsets whose result is part of that of the commit."""
        try:
            effects = self.machine.offsets(None, "g", 2, self.driver.now)
        except CallRefused:
            return
        self.do(effects)

    def commit_offsets(self, code: int) -> None:
        ask = self.offsets.pop(0)
        found = coordinate(ApiKey.TXN_OFFSET_COMMIT, code)
        self.do(self.machine.offsets_answered(ask.serial, ask.number, found, self.driver.now))

    # The coordinator -----------------------------------------------------------------------------

    def done_before(self) -> bool:
        return self.machine.serial in self.committed

    def carry_out(self) -> None:
        """Let the coordinator do what the request asks for."""
        request, serial = self.driver.request, self.machine.serial
        if isinstance(request, SendEndTxn) and serial not in self.committed | self.aborted:
            (self.committed if request.commit else self.aborted).add(serial)

    def good_answer(self) -> None:
        request = self.driver.request
        if isinstance(request, SendEndTxn) and not request.commit and self.done_before():
            self.answer(48)
            return
        self.carry_out()
        self.note(self.driver.end() if isinstance(request, SendEndTxn) else self.driver.answer())

    def answer(self, code: int, *, done: bool = False) -> None:
        request = self.driver.request
        if done:
            self.carry_out()
        if isinstance(request, SendEndTxn) and request.commit:
            if code in DOUBTFUL:
                self.in_doubt = True
                self.ended_as[self.machine.serial] = request.protocol
            elif code == 48:
                self.in_doubt = False
                self.ended_as.clear()
        self.note(self.driver.answer(code))

    def lose(self, *, written: bool, done: bool = False) -> None:
        request = self.driver.request
        if done:
            self.carry_out()
        if isinstance(request, SendEndTxn) and request.commit and written:
            self.in_doubt = True
            self.ended_as[self.machine.serial] = request.protocol
        self.note(self.driver.lose(written=written))

    def reconnect(self) -> None:
        self.driver.protocol = TV1 + TV2 - self.driver.protocol
        self.do(self.machine.coordinator_found(self.driver.protocol, self.driver.now))

    def time(self) -> None:
        due = self.machine.next_due()
        if due is not None:
            self.driver.now = max(due, self.driver.now)
            self.do(self.machine.time_passed(self.driver.now))

    # What must hold ------------------------------------------------------------------------------

    def do(self, effects: list[Effect]) -> None:
        self.note(self.driver.do(effects))

    def note(self, effects: list[Effect]) -> None:
        machine = self.machine
        serial = machine.serial
        for effect in effects:
            match effect:
                case SendEndTxn():
                    # A coordinator that has left the second protocol refuses its EndTxn.
                    protocols = self.began_with[serial], self.driver.protocol
                    # A commit that may have been carried out is repeated as it was.
                    assert effect.protocol == min(*protocols, self.ended_as.get(serial, TV2))
                    assert machine.view.touch.at is not None
                    if effect.commit:
                        assert serial not in self.spoiled | self.prepared
                        assert not self.offsets
                case SendAddPartitions() | SendAddOffsets():
                    assert self.began_with[serial] == TV1
                    assert machine.state in OPEN
                case OpenAdmission():
                    self.admitting = True
                case ShutAdmission():
                    self.admitting = False
                case FailRows():
                    assert not self.admitting, "rows may be accepted that do not fail"
                    self.unsettled = False
                case WatchRows():
                    assert not self.admitting, "rows may be accepted that are not waited for"
                    self.watched = effect.serial
                case DrainBatches():
                    assert not machine.view.is_open
                    self.draining = effect.serial
                case CommitOffsets():
                    self.offsets.append(effect)
                case GiveUpOffsets():
                    self.offsets = [a for a in self.offsets if a.serial != effect.serial]
                case AnswerCaller():
                    self.tell(effect)
        if machine.state is S.ABORTABLE:
            self.spoiled.add(serial)
        assert machine.view.is_open is (machine.state in OPEN)
        assert self.admitting is (machine.state is S.IN_TRANSACTION)
        assert not self.unsettled or machine.state in OPEN, "rows are forgotten"
        if isinstance(self.driver.request, SendAddPartitions | SendAddOffsets):
            assert machine.state in OPEN | {S.ABORTABLE, S.DRAINING, S.FATAL}

    def tell(self, effect: AnswerCaller) -> None:
        serial = self.waiting.pop(effect.caller)
        outcome, failure = effect.outcome, effect.failure
        if outcome is None or serial != self.machine.serial or not serial:
            return
        self.reported[serial] = outcome
        touched = self.machine.view.touch.at is not None
        if outcome is COMMITTED:
            assert serial in self.committed or not touched
        elif outcome is NOT:
            assert serial not in self.committed
        in_flight = (
            isinstance(self.driver.request, SendEndTxn)
            and self.driver.request.commit
            and failure is not None
            and failure.kind is FailureKind.TIMEOUT
        )
        decided = outcome is COMMITTED or serial in self.aborted
        if not decided:
            assert (outcome is POSSIBLY) is (self.in_doubt or in_flight)

    def duty(self) -> bool:
        """Let the next thing happen that everything waits for; return whether there is one."""
        if self.driver.request is not None:
            self.good_answer()
        elif self.watched is not None:
            self.settle()
        elif self.draining is not None:
            self.drain(spent=False)
        elif self.offsets:
            self.commit_offsets(0)
        elif self.machine.state in AT_REST | ({S.IN_TRANSACTION, S.ABORTABLE} - self.called()):
            return False
        else:
            self.time()
        return True

    def called(self) -> set[S]:
        """Return the state in which a caller waits, if any."""
        return {self.machine.state} if self.waiting else set()

    def come_to_rest(self) -> None:
        """Let everything answer, and then close."""
        for closing in (False, True):
            if closing:
                self.call("close", self.driver.now + 1000.0)
            for _ in range(100):
                if not self.duty():
                    break
            assert not self.waiting, "a caller was not told"
        assert self.machine.state in AT_REST


@pytest.mark.parametrize("protocol", [TV1, TV2])
@pytest.mark.parametrize("part", range(4))
def test_whatever_happens(protocol: int, part: int) -> None:
    chance = random.Random(f"{SEED} {protocol} {part}")
    for _ in range(250):
        walk = Walk(protocol)
        walk.machine.hold.guesses = chance.random() < 0.5
        walk.call("init")
        for _ in range(chance.choice([20, 60, 150])):
            if chance.random() < 0.3 and walk.duty():
                continue
            chance.choice(walk.actions())()
        walk.come_to_rest()
