"""Calls under a clock that a test controls, and what a cluster can do to them.

The time that a call takes is counted by that clock alone: it is stopped at the bound of the call
and a second, and then the call has to return, however slow the machine is.
"""

from __future__ import annotations

import selectors
import threading
from collections.abc import Callable, Sequence
from typing import Any

from pykaproducer import PreparedTransaction, TopicPartition, TransactionControl
from pykaproducer.testing import FakeClock, ScriptedCluster
from pykaproducer.testing.scripted import Drop, Exchange, Hold, Refuse, proceed
from tests.transactions.helper import PATIENCE

#: How late a call may return (seconds).
LATE = 1.0
#: In how many steps the clock is advanced to the bound, so that a call can try again.
STEPS = 10
#: The real time for which a call may run between two steps (seconds). The result does not depend
#: on it, only how often the call tries again.
MOMENT = 0.005

#: The requests of transactions, those to find a coordinator first.
FIND, APIS = (
    "find_coordinator",
    (
        "init_producer_id",
        "add_partitions_to_txn",
        "add_offsets_to_txn",
        "txn_offset_commit",
        "end_txn",
        "offset_fetch",
        "describe_transactions",
        "list_transactions",
    ),
)
#: The coordinator of everything is broker 0, unless it moves.
COORDINATOR, OTHER = 0, 1


NAME, TOPIC = "orders-0", "t"
PLACE = TopicPartition(TOPIC, 0)
#: The calls of a control client.
CONTROLS: dict[str, Callable[[TransactionControl, PreparedTransaction, float], Any]] = {
    "initialize": lambda c, token, t: c.initialize("driver", 60_000, timeout=t),
    "commit_offsets": lambda c, token, t: c.commit_offsets(token, {"g": {PLACE: 1}}, timeout=t),
    "complete": lambda c, token, t: c.complete(token, commit=False, timeout=t),
    "complete_all": lambda c, token, t: c.complete_all([token], commit=True, timeout=t),
    "fence": lambda c, token, t: c.fence([NAME], timeout=t),
    "describe": lambda c, token, t: c.describe([NAME], timeout=t),
    "list": lambda c, token, t: c.list(timeout=t),
    "offsets": lambda c, token, t: c.offsets(["g"], timeout=t),
}


class CountingClock(FakeClock):
    """A clock that knows the deadline of the last call."""

    def __init__(self) -> None:
        super().__init__()
        self._counted = threading.Condition()
        self._deadline: float | None = None

    def after(self, timeout: float | None) -> float | None:
        deadline = super().after(timeout)
        with self._counted:
            self._deadline = deadline
            self._counted.notify_all()
        return deadline

    def bounded(self, call: Callable[[], Any]) -> Any:
        """Call with a timeout, and return the result, or the error that was raised.

        Fails if it has not returned a second after its timeout.
        """
        self._deadline = None
        results: list[Any] = []
        ended = threading.Event()

        def run() -> None:
            try:
                results.append(call())
            except Exception as error:
                results.append(error)
            ended.set()
            with self._counted:
                self._counted.notify_all()

        thread = threading.Thread(target=run, name="bounded call", daemon=True)
        thread.start()
        with self._counted:
            self._counted.wait_for(lambda: self._deadline is not None or ended.is_set(), PATIENCE)
        deadline = self._deadline
        if deadline is not None:
            step = (deadline - self.monotonic()) / STEPS
            for _ in range(STEPS):
                if not ended.wait(MOMENT):
                    self.jump(max(0.0, step))
            if not ended.wait(MOMENT):
                # close() counts its deadline in two places.
                self.jump(max(0.0, (self._deadline or 0.0) - self.monotonic()) + LATE)
        assert ended.wait(PATIENCE), f"it has not returned by {deadline} and {LATE} s"
        thread.join(PATIENCE)
        return results[0]


class PollingClock(CountingClock):
    """A clock for a thread that waits for sockets alone, which a jump does not wake."""

    def __init__(self) -> None:
        super().__init__()
        #: Set when a thread waits for sockets.
        self.polls = threading.Event()

    def select(
        self,
        selector: selectors.BaseSelector,
        deadline: float | None,
        wake: Callable[[], None],
    ) -> list[tuple[selectors.SelectorKey, int]]:
        self.polls.set()
        while True:
            found = selector.select(MOMENT)
            if found or (deadline is not None and self.monotonic() >= deadline):
                return found


def scripted_control(cluster: ScriptedCluster, clock: FakeClock) -> TransactionControl:
    """Return a control client that uses the network of *cluster*, and *clock*."""

    class ScriptedControl(TransactionControl):
        _network_type = staticmethod(lambda config: cluster.network)

    ScriptedControl._clock = clock
    return ScriptedControl(bootstrap_servers=cluster.bootstrap_servers)


# Faults -------------------------------------------------------------------------------------------


def _all(cluster: ScriptedCluster, action: Any, apis: Sequence[str] = APIS) -> None:
    for api in apis:
        cluster.always(api, action)


def _moves(cluster: ScriptedCluster) -> None:
    """Each request finds that the coordinator has just moved to the other broker."""

    def move(exchange: Exchange) -> None:
        request = exchange.request
        names = {"transaction": [getattr(request, "transactional_id", None) or "x"]}
        names["transaction"] += getattr(request, "transactional_ids", None) or []
        names["transaction"].append(getattr(request, "v3_and_below_transactional_id", None) or "x")
        names["group"] = [getattr(request, "group_id", None) or "x"]
        names["group"] += [each.group_id for each in getattr(request, "groups", None) or []]
        for kind, found in names.items():
            for name in found:
                cluster.move_coordinator(kind, name, OTHER - exchange.broker)
        exchange.answer(exchange.refusal(16))

    _all(cluster, move)


def _stop_all(cluster: ScriptedCluster, *, silently: bool) -> None:
    for broker in (COORDINATOR, OTHER):
        cluster.stop(broker, silently=silently)


#: What happens to the coordinator, or to the cluster.
FAULTS: dict[str, Callable[[ScriptedCluster], None]] = {
    "it closes connections": lambda cluster: _all(cluster, Drop()),
    "it carries out, and closes connections": lambda cluster: _all(cluster, Drop(appended=True)),
    "it never answers": lambda cluster: _all(cluster, Hold()),
    "connection refused": lambda cluster: cluster.stop(COORDINATOR),
    "silent": lambda cluster: cluster.stop(COORDINATOR, silently=True),
    "51 forever": lambda cluster: _all(cluster, Refuse(51)),
    "14 forever": lambda cluster: _all(cluster, Refuse(14)),
    "15 forever": lambda cluster: _all(cluster, Refuse(15), [FIND, *APIS]),
    "16 forever": lambda cluster: _all(cluster, Refuse(16)),
    "it moves back and forth": _moves,
    "all are down": lambda cluster: _stop_all(cluster, silently=False),
    "all are silent": lambda cluster: _stop_all(cluster, silently=True),
}


def heal(cluster: ScriptedCluster) -> None:
    """End all faults."""
    _all(cluster, proceed, [FIND, *APIS])
    for broker in (COORDINATOR, OTHER):
        cluster.start(broker)
