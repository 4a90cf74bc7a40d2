"""The rules of transactions: what can happen to a transactional producer, besides all the rest."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from pykaproducer._errors.codes import ErrorCode
from pykaproducer._machines.transaction_states import TransactionCall, TransactionState
from pykaproducer._wire.messages import ApiKey

from .cluster import Fate, Kind
from .coordinator_stages import ModelConnection
from .machine import BROKER, FATES, INDEX, LEADERS, NEXT, SETTINGS, WARM, Model, Next
from .stages import ModelBridge
from .transactional_world import TransactionalWorld
from .world import CALM, WELL

_C, _S = TransactionCall, TransactionState

#: Answers of a coordinator that has done nothing.
REFUSALS = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
)
#: Answers of one that has, or will have, carried the request out: its log was slow, or was taken
#: over by another broker in the meantime (TransactionStateManager).
COMPLAINTS = (
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
COORDINATOR_FATE = st.one_of(
    st.just(WELL),
    st.just(WELL),
    st.just(WELL),
    st.builds(Fate, st.just(Kind.REFUSE), st.sampled_from(REFUSALS)),
    st.builds(Fate, st.just(Kind.TAKE_AND_COMPLAIN), st.sampled_from(COMPLAINTS)),
    st.builds(Fate, st.just(Kind.REFUSE), st.just(ErrorCode.TRANSACTION_ABORTABLE)),
)
COORDINATOR_FATES = st.lists(COORDINATOR_FATE, min_size=1, max_size=4)
#: The requests of a transaction, and what happens while one of them is unanswered.
REQUESTS = (
    ApiKey.PRODUCE,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.END_TXN,
    ApiKey.END_TXN,
    ApiKey.DESCRIBE_TRANSACTIONS,
)
EVENTS = (
    ("lost",),
    ("lost behind it",),
    ("late",),
    ("timeout",),
    ("another instance",),
    ("move",),
    ("upgrade", "lost"),
    ("late", "another instance"),
    ("late", "timeout"),
    ("late", "move"),
    ("late", "late ones come"),
    ("late ones come",),
    ("lost behind it", "another instance"),
    ("lost behind it", "timeout"),
    ("lost behind it", "move"),
)
#: How long a caller waits (seconds); None: as long as it takes.
PATIENCE = st.sampled_from([None, None, None, 0.05, 3.0])
#: What the program does next, if it can.
GOAL = st.sampled_from([_C.COMMIT, _C.COMMIT, _C.COMMIT, _C.ABORT, _C.ABORT, _C.PREPARE])
#: The states in which init_transactions() leads on.
_NEEDS_INIT = (_S.UNINITIALIZED, _S.PREPARED)


class TransactionalModel(TransactionalWorld, Model):
    """The state machine with the second protocol (KIP-890)."""

    @initialize(
        leaders=LEADERS,
        **SETTINGS,
        warm=WARM,
        transaction_timeout_ms=st.sampled_from([6_000, 600_000, 600_000]),
        asks=st.booleans(),
    )
    def make(  # type: ignore[override]
        self, leaders: list[int], warm: bool, asks: bool, **chosen: Any
    ) -> None:
        """Create the producer; with *warm*, it has committed a transaction.

        *asks*: it asks the coordinator whether the last transaction has ended.
        """
        self.begin(leaders, self.transitions, **chosen | self.fixed)
        self.machine.hold.guesses = not asks
        self.begun = True
        if warm:
            self.call(_C.INIT)
            self.transact(range(len(leaders)))

    # The program ------------------------------------------------------------------------------

    def _is_free(self) -> bool:
        return self.begun and self.pending is None and not self.closed

    @precondition(lambda self: self._is_free())
    @rule(goal=GOAL, seconds=PATIENCE, then=NEXT)
    def program_goes_on(self, goal: TransactionCall, seconds: float | None, then: Next) -> None:
        """Make the call that follows in the state of the producer."""
        state = self.machine.state
        if self.unfinished is not None:
            self.user_repeats(seconds)
        elif state is _S.IN_TRANSACTION:
            self.user_calls(goal, seconds)
        elif state is _S.READY:
            self.user_calls(_C.BEGIN, None)
        else:
            self.user_calls(_C.INIT if state in _NEEDS_INIT else _C.ABORT, seconds)
        self._run(then)

    @precondition(lambda self: self._is_free())
    @rule(
        call=st.sampled_from([_C.INIT, _C.BEGIN, _C.COMMIT, _C.PREPARE, _C.ABORT]),
        seconds=PATIENCE,
        then=NEXT,
    )
    def program_errs(self, call: TransactionCall, seconds: float | None, then: Next) -> None:
        """Make any call, which may not fit."""
        self.user_calls(call, seconds)
        self._run(then)

    @precondition(lambda self: self._is_free() and self.machine.state is _S.IN_TRANSACTION)
    @rule(
        group=st.sampled_from(["a", "b"]),
        partition=st.integers(0, 1),
        seconds=PATIENCE,
        then=NEXT,
    )
    def send_offsets(self, group: str, partition: int, seconds: float | None, then: Next) -> None:
        self.user_sends_offsets(group, partition, seconds)
        self._run(then)

    @precondition(
        lambda self: self.pending is not None and self.pending.call not in (_C.BEGIN, _C.OFFSETS)
    )
    @rule(then=NEXT)
    def program_is_interrupted(self, then: Next) -> None:
        self.user_leaves()
        self._run(then)

    @precondition(lambda self: self._is_free() and self.transactions)
    @rule(seldom=st.integers(0, 9), then=NEXT)
    def program_closes(self, seldom: int, then: Next) -> None:
        if not seldom:
            self.user_calls(_C.CLOSE, 10.0)
            self.closed = True
            self._run(then)

    @precondition(lambda self: self._is_free() and self.machine.state is _S.READY)
    @rule(
        partition=INDEX,
        times=st.integers(0, 3),
        offsets=st.booleans(),
        goal=GOAL,
        fates=FATES,
        coordinator_fates=COORDINATOR_FATES,
        rounds=st.integers(0, 3),
        wait=st.booleans(),
    )
    def transaction(
        self,
        partition: int,
        times: int,
        offsets: bool,
        goal: TransactionCall,
        fates: list[Fate],
        coordinator_fates: list[Fate],
        rounds: int,
        wait: bool,
    ) -> None:
        """Make a transaction as far as it goes in so many rounds."""
        self.user_calls(_C.BEGIN, None)
        self.run_all()
        self.learn()
        self.user_sends(self._partition(partition), times, 2 * CALM)
        if offsets and self.pending is None:
            self.user_sends_offsets("a", 0, None)
            self.coordinators_go_on(coordinator_fates, fates, rounds, wait)
            self.learn()
        if self.pending is None:
            self.user_calls(goal, None)
        self.coordinators_go_on(coordinator_fates, fates, rounds, wait)

    @precondition(lambda self: self.begun and not self.closed)
    @rule(
        partition=INDEX,
        offsets=st.booleans(),
        goal=GOAL,
        early=st.booleans(),
        request=st.sampled_from(REQUESTS),
        events=st.sampled_from(EVENTS),
        rounds=st.integers(0, 3),
    )
    def something_happens_during_a_request(
        self,
        partition: int,
        offsets: bool,
        goal: TransactionCall,
        early: bool,
        request: ApiKey,
        events: tuple[str, ...],
        rounds: int,
    ) -> None:
        """Make a transaction in which *events* happen while *request* is unanswered.

        *early*: its end is wanted before that, otherwise then.
        """
        if not self.get_ready():
            return
        self.call(_C.BEGIN)
        self.user_sends(self._partition(partition), 2, 2 * CALM)
        if offsets:
            self.user_sends_offsets("a", 0, None)
        elif early:
            self.user_calls(goal, None)
        found = self.go_until(request)
        if self.pending is None:
            self.user_calls(goal, None)
            found = found or self.go_until(request)
        self.run_all()
        for event in events if found is not None else []:
            self.happens(event, found)
            self.run_all()
        self.go_on(itertools.repeat(WELL), rounds, wait=True)

    #: The rule is chosen three times as often as others.
    something_happens_again = something_else_happens = something_happens_during_a_request

    @precondition(lambda self: self.prepared is not None)
    @rule(commits=st.booleans())
    def another_process_ends_it(self, commits: bool) -> None:
        self.end_prepared(commits=commits)

    @rule(partition=INDEX, strict=st.booleans(), seldom=st.integers(0, 4))
    def producers_are_forgotten(self, partition: int, strict: bool, seldom: int) -> None:
        super().producers_are_forgotten(partition, strict, seldom)
        if strict and not seldom:
            self.excuses.append("a broker has forgotten the producer")

    def happens(self, event: str, where: ModelConnection | ModelBridge) -> None:
        """Let *event* happen while a request on the connection *where* is unanswered."""
        match event:
            case "another instance":
                self.another_instance_comes(19, True)
            case "timeout":
                self.time_out()
            case "late ones come":
                while self.late:
                    self.handle_late(0)
                while self.late_calls:
                    self.handle_late_call(0)
            case "move":
                self.coordinator_moves(1 - min(1, self.cluster.coordinating), "new")
            case "upgrade":
                self.feature_changes(2 - self.cluster.coordinator.level, 0)
            case _ if isinstance(where, ModelBridge):
                if where.ready:
                    late = where.cut(3, 3 * (event == "lost behind it"), self.cluster)
                    if event == "late" and late:
                        self.late.append((where.broker_id, late))
            case _:
                if where.ready:
                    self._lose(where, True, event == "lost behind it", event == "late")

    # The coordinators -------------------------------------------------------------------------

    def _connections(self, kind: str) -> list[ModelConnection]:
        return [*self.pipeline.connections_that(kind)] if self.begun else []

    @precondition(lambda self: self._connections("wants"))
    @rule(which=INDEX, works=st.sampled_from([True, True, True, False]), then=NEXT)
    def coordinator_connects(self, which: int, works: bool, then: Next) -> None:
        connections = self._connections("wants")
        connections[which % len(connections)].connected(works, self.cluster)
        self._run(then)

    @precondition(lambda self: self._connections("unhandled"))
    @rule(which=INDEX, fate=COORDINATOR_FATE, answers=st.booleans(), then=NEXT)
    def coordinator_handles(self, which: int, fate: Fate, answers: bool, then: Next) -> None:
        connections = self._connections("unhandled")
        connection = connections[which % len(connections)]
        connection.taken_by_broker(self.cluster, fate)
        if answers:
            connection.answered()
            self._run(then)

    @precondition(lambda self: self._connections("handled"))
    @rule(which=INDEX, then=NEXT)
    def coordinator_answer_arrives(self, which: int, then: Next) -> None:
        connections = self._connections("handled")
        connections[which % len(connections)].answered()
        self._run(then)

    @precondition(lambda self: self._connections("ready"))
    @rule(
        which=INDEX, written=st.booleans(), arrives=st.booleans(), linger=st.booleans(), then=NEXT
    )
    def coordinator_connection_lost(
        self, which: int, written: bool, arrives: bool, linger: bool, then: Next
    ) -> None:
        """Cut a connection before a request, behind it, or behind the broker's answer."""
        connections = self._connections("ready")
        self._lose(connections[which % len(connections)], written, arrives, linger)
        self._run(then)

    def _lose(
        self, connection: ModelConnection, written: bool, arrives: bool, linger: bool
    ) -> None:
        broker = connection.broker_id
        late = connection.cut(self.cluster, written=written, arrives=arrives)
        if linger and late is not None:
            self.late_calls.append((broker, late))

    @precondition(lambda self: self._connections("ready"))
    @rule(which=INDEX)
    def coordinator_connection_is_idle(self, which: int) -> None:
        connections = self._connections("ready")
        connections[which % len(connections)].idle()

    @precondition(lambda self: self.late_calls)
    @rule(which=INDEX)
    def late_call_is_handled(self, which: int) -> None:
        self.handle_late_call(which)

    @rule(
        coordinator_fates=COORDINATOR_FATES,
        fates=FATES,
        rounds=st.integers(1, 4),
        wait=st.booleans(),
    )
    def coordinators_go_on(
        self, coordinator_fates: list[Fate], fates: list[Fate], rounds: int, wait: bool
    ) -> None:
        self.fates = itertools.cycle(coordinator_fates)
        self.cluster_goes_on(fates, rounds, wait)
        self.fates = itertools.repeat(WELL)

    @rule(broker=BROKER, named=st.sampled_from(["new", "new", "old", "none"]))
    def coordinator_moves(self, broker: int, named: str) -> None:
        """Move the coordinators; lookups may name the old ones for a while, or none."""
        cluster = self.cluster
        cluster.coordinating = broker
        if named != "old":
            cluster.named = broker if named == "new" else -1

    @rule(right=st.booleans())
    def lookups_are_right(self, right: bool) -> None:
        if right:
            self.cluster.named = self.cluster.coordinating

    @precondition(lambda self: self.begun and self.cluster.coordinator.marker is not None)
    @rule(which=INDEX)
    def marker_is_written(self, which: int) -> None:
        self.cluster.write_marker(which)

    @rule(seldom=st.integers(0, 5))
    def transaction_times_out(self, seldom: int) -> None:
        if seldom == 5:
            self.time_out()

    @rule(seldom=st.integers(0, 19), finishes=st.booleans())
    def another_instance_comes(self, seldom: int, finishes: bool) -> None:
        """Let another instance call init_transactions() once, or until it succeeds."""
        # The greatest number: hypothesis prefers the least one.
        if seldom != 19:
            return
        while not self.take_over() and finishes:
            self.cluster.write_marker()

    @rule(level=st.sampled_from([0, 2]), seldom=st.integers(0, 3))
    def feature_changes(self, level: int, seldom: int) -> None:
        """Finalize another level of transaction.version, which new connections tell."""
        if not seldom:
            self.cluster.coordinator.level = level
            self.cluster.has_left |= level < 2


class TransactionalModelBefore(TransactionalModel):
    """The state machine with the first protocol."""

    level = 0
