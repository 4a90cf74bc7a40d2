"""Codes that pass by themselves, and coordinators that hang up, answer garbage, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pykaproducer import Producer
from pykaproducer._errors.codes import ErrorCode
from pykaproducer._errors.formatting import format_error_code
from pykaproducer._util.clock import Clock
from pykaproducer._wire.messages import ApiKey
from pykaproducer.errors import (
    CommitOutcome,
    TransactionAbortableError,
    TransactionError,
    TransactionTimeoutError,
)
from pykaproducer.testing import FakeClock, ScriptedCluster
from pykaproducer.testing.scripted import (
    Action,
    Drop,
    Exchange,
    Hold,
    Mangle,
    Refuse,
    cut_short,
    garbage,
    proceed,
    truncated,
    wrong_correlation_id,
)
from tests._support.fixtures.cluster import FEATURES
from tests._support.threads import Call
from tests.machines.test_coordination import APIS, TABLE
from tests.pipeline.helper import SOON, until

from .bounds import scripted_control
from .scripted_helper import (
    BOUND,
    CALLS,
    IN_TRANSACTION,
    NAME,
    NAMES,
    NOT,
    PLACE,
    POSSIBLY,
    assert_flags,
    begun,
    error_within_bound,
    producer_of,
    send_and_commit,
    send_offsets,
    values,
)

#: Codes that pass by themselves.
PASSING = [14, 13, 7, 15, 16, 51, 3]


def passing() -> Iterator[Any]:
    """Return (request, code, protocol) for the codes of the table that are retried."""
    for codes, row in TABLE:
        for api, reaction in zip(APIS, row, strict=True):
            for code in codes:
                if code in PASSING and reaction in "RCS":
                    for protocol in NAMES[api][1]:
                        yield pytest.param(api, code, protocol, id=f"{api.name}-{code}-{protocol}")


each_passing_code = pytest.mark.parametrize(
    ("api", "code", "protocol"), list(passing()), indirect=["protocol"]
)


@each_passing_code
def test_a_code_that_passes(scripted: ScriptedCluster, api: ApiKey, code: int) -> None:
    """The request is sent again, and the program notices nothing."""
    with producer_of(scripted) as producer:
        scripted.next(NAMES[api][0], *[Refuse(code)] * 3)
        with producer.transaction():
            producer.send("t", b"value", partition=0)
            producer.send_offsets_to_transaction({PLACE: 1}, "readers")
    assert values(scripted) == [b"value"]
    assert scripted.offsets("readers") == {("t", 0): 1}


@each_passing_code
def test_a_code_that_never_passes(
    scripted: ScriptedCluster, clock: FakeClock, api: ApiKey, code: int
) -> None:
    call, name = CALLS[api], NAMES[api][0]
    with producer_of(scripted, clock) as producer:
        if api in IN_TRANSACTION:
            begun(producer)
        scripted.always(name, Refuse(code))
        error = error_within_bound(
            clock,
            producer,
            lambda: call_with_limit(call, producer),
            answered=api not in IN_TRANSACTION,
        )
        if (api, code) == (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            assert isinstance(error, TransactionAbortableError), "waiting any longer is pointless"
            return
        assert_timed_out(error, NOT if api in IN_TRANSACTION else None)
        if api not in IN_TRANSACTION:
            assert f"the last answer was {format_error_code(code)}" in str(error)


def call_with_limit(call: Callable[[Producer], None], producer: Producer) -> None:
    """Call it. Without a limit, a commit waits for the deadlines of the messages first."""
    if call is send_and_commit:
        producer.send("t", b"value", partition=0)
        producer.commit_transaction(BOUND)
    else:
        call(producer)


def assert_timed_out(error: TransactionError, outcome: CommitOutcome | None) -> None:
    assert isinstance(error, TransactionTimeoutError)
    assert error.outcome is outcome
    assert_flags(error)
    text = str(error)
    assert text.startswith(f"transactional id {NAME!r}: ")
    assert "() has not ended within its timeout; it continues" in text
    assert text.endswith("; call it again to keep waiting")


@pytest.mark.parametrize("code", PASSING[:-1])
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_an_end_that_never_passes(
    scripted: ScriptedCluster, clock: FakeClock, commit: bool, code: int
) -> None:
    with producer_of(scripted, clock) as producer:
        begun(producer)
        producer.send("t", b"value", partition=0).result(SOON)
        scripted.always("end_txn", Refuse(code))
        end = producer.commit_transaction if commit else producer.abort_transaction
        error = error_within_bound(clock, producer, end, answered=True)
        # With REQUEST_TIMED_OUT it may be carried out later; a request may be under way, too.
        if not commit:
            assert error.outcome is NOT
        elif code == 7:
            assert error.outcome is POSSIBLY
        assert_timed_out(error, error.outcome)
        assert format_error_code(code) in str(error)
        scripted.always("end_txn", proceed)
        retried(clock, end)
        assert len(values(scripted)) == commit


def retried(clock: FakeClock, call: Callable[[], object]) -> None:
    """Call until it ends: backoffs pass."""
    made = Call(call)
    until(lambda: not made.is_alive() or clock.jump(0.001) or False)
    assert made.error() is None


# No answer ----------------------------------------------------------------------------------------


def silent(exchange: Exchange) -> None:
    """Do not answer until the end of the test."""
    Hold()(exchange)


FAULTS: dict[str, Action] = {
    "garbage": Mangle(garbage),
    "truncated": Mangle(truncated),
    "another correlation id": Mangle(wrong_correlation_id),
    "cut in the answer": Mangle(cut_short, disconnect=True),
    "cut": Drop(),
    "silent": silent,
}
STEPS = ["find_coordinator", "init_producer_id", "txn_offset_commit", "commit", "abort"]


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("step", STEPS)
def test_a_coordinator_that_does_not_answer(
    scripted: ScriptedCluster, clock: FakeClock, step: str, fault: Action
) -> None:
    with producer_of(scripted, clock) as producer:
        call: Callable[[], object] = producer.init_transactions
        outcome = None
        if step in STEPS[2:]:
            begun(producer)
            producer.send("t", b"value", partition=0).result(SOON)
            call = {
                "txn_offset_commit": lambda: send_offsets(producer),
                "commit": producer.commit_transaction,
                "abort": producer.abort_transaction,
            }[step]
            outcome = POSSIBLY if step == "commit" else NOT
        scripted.always("end_txn" if step in ("commit", "abort") else step, fault)
        error = error_within_bound(clock, producer, call)
        assert_timed_out(error, outcome)
        if step == "commit":
            assert "it may have been committed" in str(error)


@pytest.mark.parametrize("fault", list(FAULTS.values())[:5], ids=list(FAULTS)[:5])
@pytest.mark.parametrize("carried_out", [True, False])
def test_an_answer_that_is_lost_once(
    scripted: ScriptedCluster, fault: Action, carried_out: bool
) -> None:
    """Each request is sent again, and one that was carried out has no other effect then."""
    lost = fault if carried_out else Drop()
    with producer_of(scripted) as producer:
        for name, _ in (*NAMES.values(), ("end_txn", ())):
            scripted.next(name, lost)
        with producer.transaction():
            producer.send("t", b"value", partition=0)
            producer.send_offsets_to_transaction({PLACE: 1}, "readers")
    assert values(scripted) == [b"value"]
    assert scripted.offsets("readers") == {("t", 0): 1}


@pytest.mark.parametrize("name", [*(each[0] for each in NAMES.values()), "end_txn"])
def test_an_answer_that_is_cut_at_each_byte(scripted: ScriptedCluster, name: str) -> None:
    """No such answer ends a stage, or is mistaken for another one."""
    cuts: list[int] = []

    def cut(exchange: Exchange) -> None:
        """Send one byte more than the last time as a whole frame, and then the proper answer."""
        whole = exchange.encoded(exchange.apply())
        size = cuts[-1] + 1 if cuts else 0
        if size < len(whole) - 4:
            cuts.append(size)
            exchange.send(size.to_bytes(4, "big") + whole[4 : 4 + size])
        else:
            exchange.send(whole)

    scripted.always(name, cut)
    with producer_of(scripted) as producer:
        with producer.transaction():
            producer.send("t", b"value", partition=0)
            producer.send_offsets_to_transaction({PLACE: 1}, "readers")
        assert producer.stats()["transactions"]["state"] == "ready"
    assert values(scripted) == [b"value"]
    assert scripted.offsets("readers") == {("t", 0): 1}
    assert cuts == list(range(len(cuts)))


# Coordinators that move or stop -------------------------------------------------------------------


def test_a_coordinator_that_moves(protocol: str) -> None:
    with (
        ScriptedCluster(2, {"t": 1}, features=FEATURES[protocol]) as scripted,
        producer_of(scripted) as producer,
    ):
        begun(producer)
        for number in range(1, 4):
            scripted.move_coordinator("transaction", NAME, number % 2)
            scripted.move_coordinator("group", "readers", number % 2)
            producer.send("t", b"%d" % number, partition=0)
            producer.send_offsets_to_transaction({PLACE: number}, "readers")
            scripted.move_coordinator("transaction", NAME, (number + 1) % 2)
            producer.commit_transaction()
            producer.begin_transaction()
        assert values(scripted) == [b"1", b"2", b"3"]
        assert scripted.offsets("readers") == {("t", 0): 3}


@pytest.mark.parametrize("client", ["transaction", "group", "control"])
@pytest.mark.parametrize("answer", ["the former one", "a dead one", "none"])
def test_a_server_that_does_not_know_the_coordinator_is_left(client: str, answer: str) -> None:
    """It is cut off from the controllers, and answers clients from its last view."""
    with (
        ScriptedCluster(4, {"t": 1}) as scripted,
        producer_of(scripted, bootstrap_servers="broker-0.scripted:9092") as producer,
    ):
        kind, key = ("group", "readers") if client == "group" else ("transaction", NAME)
        scripted.move_coordinator(kind, key, 2)
        begun(producer)
        producer.send("t", b"value", partition=0).result(SOON)
        old = scripted._state.brokers[1]
        if answer == "a dead one":
            scripted.move_leader("t", 0, 2)
            scripted.stop(1)

        cut_off = range(3 if client == "control" else 1)

        def stale(exchange: Exchange) -> None:
            if exchange.broker in cut_off and answer == "none":
                Refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE)(exchange)
                return
            found = exchange.apply()
            if exchange.broker in cut_off:
                for each in getattr(found, "coordinators", None) or [found]:
                    each.node_id, each.host, each.port = 1, old.host, old.port
            exchange.answer(found)

        scripted.always("find_coordinator", stale)
        scripted.move_coordinator(kind, key, 3)
        if client == "control":
            with scripted_control(scripted, Clock()) as control:  # type: ignore[arg-type]
                assert control.describe([NAME], timeout=SOON)[NAME].state == "Ongoing"
        if client == "group":
            producer.send_offsets_to_transaction({PLACE: 1}, "readers")
        producer.commit_transaction()
        assert values(scripted) == [b"value"]


def test_epochs_that_are_used_up(scripted: ScriptedCluster) -> None:
    """The coordinator gives another producer id, and the producer continues with it."""
    ids = set()
    for number in range(4):
        with producer_of(scripted) as producer:
            for _ in range(2):
                with producer.transaction():
                    producer.send("t", b"%d" % number, partition=0)
                ids.add(producer.stats()["transactions"]["producer_id"])
        if not number:
            scripted._state.coordinators.ids[NAME].epoch = 2**15 - 4
    assert values(scripted) == [b"%d" % number for number in range(4) for _ in range(2)]
    assert len(ids) == 2


def test_brokers_that_cannot_be_reached(scripted: ScriptedCluster, clock: FakeClock) -> None:
    scripted.stop(0)
    with producer_of(scripted, clock) as producer:
        error = error_within_bound(clock, producer, producer.init_transactions)
        assert_timed_out(error, None)
        assert "connection refused" in str(error)
