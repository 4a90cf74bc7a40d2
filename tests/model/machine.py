"""The rules: everything that can happen to a producer and its cluster, in any order."""

from __future__ import annotations

import itertools
import sys
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pykaproducer._errors.codes import ErrorCode
from pykaproducer._machines.ordering import Transitions
from pykaproducer._machines.verdicts import VERDICTS, Action

from .cluster import Fate, Kind
from .world import BROKERS, CALM, WELL, World

#: Errors for a batch that is in the leader's log all the same. In the last three cases the leader
#: waits for the other replicas and then loses the leadership, the partition or its disk.
COMPLAINTS = (
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.KAFKA_STORAGE_ERROR,
)

#: An index into a collection whose size is known only when the rule runs.
INDEX = st.integers(0, 11)
BROKER = st.integers(0, BROKERS - 1)
Next = list[int] | str
#: The stages that run after an event: a few in this order, or all of them until they are idle.
NEXT = st.one_of(st.just("all"), st.just("all, in place"), st.lists(INDEX, max_size=6))


def _refusals() -> st.SearchStrategy[int]:
    """Return a strategy for every rejection code of the table; permanent errors are rare."""
    by_action: dict[Action, list[int]] = {}
    for code, verdict in sorted(VERDICTS.items()):
        by_action.setdefault(verdict.action, []).append(code)
    del by_action[Action.DELIVERED]
    final = by_action.pop(Action.FAILED)
    often = [st.sampled_from(codes) for codes in by_action.values()]
    return st.one_of(*often, *often, st.sampled_from(final))


FATE = st.one_of(
    st.just(WELL),
    st.just(WELL),
    st.builds(Fate, st.just(Kind.REFUSE), _refusals()),
    st.builds(Fate, st.just(Kind.TAKE_AND_COMPLAIN), st.sampled_from(COMPLAINTS)),
)
FATES = st.lists(FATE, min_size=1, max_size=6)
#: What is chosen when the producer is made: its settings, and the first events.
LEADERS = st.lists(BROKER, min_size=1, max_size=2)
WARM = st.sampled_from([True, True, False])
SETTINGS: dict[str, st.SearchStrategy[Any]] = {
    "linger_ms": st.sampled_from([0, 0, 50]),
    "retries": st.sampled_from([2, 2**31 - 1, 2**31 - 1]),
    "max_in_flight_requests_per_connection": st.sampled_from([1, 2, 5, 5]),
    "batch_max_messages": st.sampled_from([0, 1, 2, 3]),
    "stage_threads": st.sampled_from(["shared", "shared", "own"]),
}


class Model(World, RuleBasedStateMachine):
    """The state machine, with idempotence."""

    #: Settings of the producer that are not chosen at random.
    fixed: ClassVar[dict[str, Any]] = {}

    def __init__(self, transitions: Transitions | None = None) -> None:
        super().__init__()
        self.transitions = Transitions() if transitions is None else transitions
        self.begun = False

    @initialize(leaders=LEADERS, **SETTINGS, warm=WARM)
    def make(self, leaders: list[int], warm: bool, **chosen: Any) -> None:
        """Create the producer; with *warm*, each partition has already had a message."""
        self.begin(leaders, self.transitions, **chosen | self.fixed)
        self.begun = True
        if warm:
            for partition in range(len(leaders)):
                self.user_sends(partition, 1, 2 * CALM)
            self.calm_down()

    # The user ---------------------------------------------------------------------------------

    @rule(
        partition=INDEX,
        times=st.sampled_from([1, 1, 2, 5]),
        seconds=st.sampled_from([0.3, 2, 2 * CALM, 2 * CALM]),
        then=NEXT,
    )
    def send(self, partition: int, times: int, seconds: float, then: Next) -> None:
        self.user_sends(self._partition(partition), times, seconds)
        self._run(then)

    @rule(begins=st.booleans())
    def flush(self, begins: bool) -> None:
        """Begin a flush, or let its time run out."""
        if begins:
            self.user_flushes()
        else:
            self.pipeline.flushing = False

    def _partition(self, index: int) -> int:
        return index % len(self.cluster.logs)

    # The stages and time ------------------------------------------------------------------------

    @rule(which=st.lists(INDEX, min_size=1, max_size=8), most=st.sampled_from([1, 2, 100]))
    def stages_run(self, which: list[int], most: int) -> None:
        for index in which:
            busy = self.schedule.busy()
            if not busy:
                return
            self.schedule.run(busy[index % len(busy)], most)

    def _run(self, then: Next) -> None:
        self.schedule.direct = then == "all, in place"
        if isinstance(then, list):
            self.stages_run(then, 1)
        else:
            self.run_all()
        self.schedule.direct = False

    @rule(which=INDEX)
    def stage_is_held_up(self, which: int) -> None:
        """Suspend the thread of a stage for a while; its items wait."""
        stages = [*self.pipeline.brokers.all(), *self.pipeline.bridges]
        if stages:
            self.schedule.held_up.add(stages[which % len(stages)])

    @precondition(lambda self: self.schedule.held_up)
    @rule(then=NEXT)
    def no_stage_is_held_up(self, then: Next) -> None:
        self.schedule.held_up.clear()
        self._run(then)

    @rule(seconds=st.sampled_from([None, None, 0.01, 0.12, 0.5, 3, 11]), then=NEXT)
    def time_passes(self, seconds: float | None, then: Next) -> None:
        """Let *seconds* pass; None: until a stage's next deadline."""
        if seconds is None:
            self.jump_to_next(CALM)
        else:
            self.clock.jump(seconds)
        self._run(then)

    # Connections and brokers --------------------------------------------------------------------

    @precondition(lambda self: self.bridges("wants"))
    @rule(which=INDEX, works=st.sampled_from([True, True, True, False]), then=NEXT)
    def connect(self, which: int, works: bool, then: Next) -> None:
        bridges = self.bridges("wants")
        bridges[which % len(bridges)].connected(works)
        self._run(then)

    @precondition(lambda self: self.bridges("unhandled"))
    @rule(which=INDEX, fates=FATES, answers=st.booleans(), then=NEXT)
    def broker_handles(self, which: int, fates: list[Fate], answers: bool, then: Next) -> None:
        bridges = self.bridges("unhandled")
        bridge = bridges[which % len(bridges)]
        bridge.taken_by_broker(self.cluster, fates)
        if answers:
            bridge.answered()
            self._run(then)

    @precondition(lambda self: self.bridges("handled"))
    @rule(which=INDEX, then=NEXT)
    def answer_arrives(self, which: int, then: Next) -> None:
        bridges = self.bridges("handled")
        bridges[which % len(bridges)].answered()
        self._run(then)

    @precondition(lambda self: self.bridges("ready"))
    @rule(
        which=INDEX,
        written=st.integers(0, 3),
        arrives=st.integers(0, 3),
        linger=st.sampled_from([False, False, True]),
        then=NEXT,
    )
    def connection_lost(
        self, which: int, written: int, arrives: int, linger: bool, then: Next
    ) -> None:
        """Cut a connection; with *linger*, requests written but not handled are handled later."""
        bridges = self.bridges("ready")
        bridge = bridges[which % len(bridges)]
        late = bridge.cut(written, arrives, self.cluster)
        if linger and late:
            self.late.append((bridge.broker_id, late))
        self._run(then)

    @precondition(lambda self: self.late)
    @rule(which=INDEX)
    def late_request_is_handled(self, which: int) -> None:
        self.handle_late(which)

    @rule(fates=FATES, rounds=st.integers(1, 3), wait=st.booleans())
    def cluster_goes_on(self, fates: list[Fate], rounds: int, wait: bool) -> None:
        self.go_on(itertools.cycle(fates), rounds, wait=wait)

    @rule(
        partition=INDEX,
        times=st.integers(1, 4),
        fates=FATES,
        rounds=st.integers(1, 3),
        wait=st.booleans(),
    )
    def send_and_go_on(
        self, partition: int, times: int, fates: list[Fate], rounds: int, wait: bool
    ) -> None:
        self.user_sends(self._partition(partition), times, 2 * CALM)
        self.cluster_goes_on(fates, rounds, wait)

    # Leaders ------------------------------------------------------------------------------------

    @rule(partition=INDEX, leader=BROKER, told=st.booleans(), cut=st.booleans())
    def leader_moves(self, partition: int, leader: int, told: bool, cut: bool) -> None:
        """Move a leader; *told* updates the metadata at once, *cut* truncates the log."""
        self.cluster.move(self._partition(partition), leader, cut=cut)
        if told:
            self.cluster.published = list(self.cluster.leaders)

    @rule(partition=INDEX, leader=BROKER, fates=FATES, comes_back=st.booleans())
    def leader_moves_and_its_old_stage_is_slow(
        self, partition: int, leader: int, fates: list[Fate], comes_back: bool
    ) -> None:
        """Fail the new path before the old path's chaser is back.

        With *comes_back*, the chaser is handed back along with the items that failed on the new
        path.
        """
        partition = self._partition(partition)
        old = self.cluster.leaders[partition]
        self.user_sends(partition, 2, 2 * CALM)
        self.run_all()
        self.leader_moves(partition, leader, told=True, cut=False)
        self.cluster_goes_on(fates, 1, wait=False)
        self.hold_up(old)
        self.cluster_goes_on(fates, 3, wait=True)
        if comes_back:
            self.schedule.held_up.clear()
            self.jump_to_next(2)
            self.run_all()

    @rule(partition=INDEX, leader=st.integers(-1, BROKERS - 1), right=st.booleans())
    def metadata_says(self, partition: int, leader: int, right: bool) -> None:
        """Publish the leader of *partition*: the current one, an outdated one, or none."""
        partition = self._partition(partition)
        self.cluster.published[partition] = self.cluster.leaders[partition] if right else leader

    @precondition(lambda self: self.metadata.wire)
    @rule(then=NEXT)
    def metadata_comes(self, then: Next) -> None:
        self.metadata.answered(self.cluster)
        self._run(then)

    @rule(partition=INDEX, strict=st.booleans(), seldom=st.integers(0, 4))
    def producers_are_forgotten(self, partition: int, strict: bool, seldom: int) -> None:
        """Forget all producers after a long idle time; nothing of the partition is in flight."""
        if not seldom:
            self.calm_down()
            self.cluster.logs[self._partition(partition)].forget_producers(strict=strict)

    # Invariants ---------------------------------------------------------------------------------

    @invariant()
    def promises_are_kept(self) -> None:
        if self.begun:
            self.check_now()

    def teardown(self) -> None:
        if not self.begun:
            return
        with self.patches:
            # Otherwise the violations that follow from the first one would hide it.
            if sys.exception() is None:
                self.check_the_end()


class ModelWithoutIdempotence(Model):
    """The state machine without idempotence: a retry may write a message twice."""

    idempotent = False
