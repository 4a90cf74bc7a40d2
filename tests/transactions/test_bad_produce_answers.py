"""Each error code of a Produce response in a transaction: what the program gets, and can do then.

The table of the codes is tested in ``tests/machines/test_verdicts.py``, and the same codes without
transactions in ``tests/pipeline/test_failure_table.py``.
"""

from __future__ import annotations

import threading

import pytest

from pykaproducer import Status
from pykaproducer._errors.codes import ErrorCode
from pykaproducer._errors.formatting import format_error_code, kafka_class
from pykaproducer._errors.hints import ADVICE
from pykaproducer._machines.verdicts import Action, classify
from pykaproducer._pipeline.coordinator import CoordinatorItem
from pykaproducer._pipeline.coordinator_items import RowFailed
from pykaproducer.errors import (
    BrokerRejectedError,
    RetriesExhaustedError,
    TransactionAbortedError,
)
from pykaproducer.testing import ScriptedCluster
from pykaproducer.testing.scripted import Refuse, proceed
from tests.pipeline.helper import SOON

from .scripted_helper import (
    NOT,
    UNDEFINED,
    assert_flags,
    assert_goes_on,
    assert_successor_works,
    begun,
    error_of,
    producer_of,
    send_and_commit,
    type_of,
    values,
)

ALL = [*ErrorCode, *UNDEFINED]
_RETRIED = {Action.RETRY, Action.RETRY_SOON, Action.REFRESH_AND_RETRY}


def action(code: int, *, retried_soon: bool = False) -> Action:
    """Return what is done about *code* for a batch of one message in a transaction."""
    return classify(
        code,
        older_unsettled=False,
        count=1,
        sequenced=True,
        transactional=True,
        retried_soon=retried_soon,
    ).action


DELIVERED = [code for code in ALL if action(code) is Action.DELIVERED]
RETRIED = [code for code in ALL if action(code) in _RETRIED]
COUNTED = [code for code in ALL if action(code, retried_soon=True) is Action.RETRY]
FATAL = {49: "F", 53: "F", 90: "fenced"}
ABORTABLE = [code for code in ALL if action(code) is Action.FAILED and code not in FATAL]


def test_no_code_is_left_out_here() -> None:
    assert sorted([*DELIVERED, *RETRIED, *FATAL, *ABORTABLE]) == sorted(ALL)
    assert {45, 47, 48, 59, 120, -1} <= {*ABORTABLE}
    assert {51, 19, 3, 6, 7} <= {*RETRIED}


def named(code: int) -> str:
    return ErrorCode(code).name if code in [*ErrorCode] else str(code)


@pytest.mark.parametrize("code", DELIVERED, ids=named)
def test_a_code_of_success(scripted: ScriptedCluster, code: int) -> None:
    with producer_of(scripted) as producer:
        begun(producer)
        scripted.next("produce", Refuse(code, appended=True))
        send_and_commit(producer)
    assert values(scripted) == [b"value"]


@pytest.mark.parametrize("code", RETRIED, ids=named)
def test_a_code_that_passes(scripted: ScriptedCluster, code: int) -> None:
    """The batch is sent again with its numbers and its epoch, and the commit succeeds."""
    with producer_of(scripted) as producer:
        begun(producer)
        scripted.next("produce", *[Refuse(code)] * 3)
        send_and_commit(producer)
        assert_goes_on(producer, "")
        batches = scripted.batches("t")
    assert values(scripted) == [b"value", b"next"]
    assert batches[0].base_sequence == 0
    assert all(batch.transactional for batch in batches)
    assert len(scripted.received("produce")) == 5


@pytest.mark.parametrize("code", COUNTED, ids=named)
def test_a_code_that_passes_too_late(scripted: ScriptedCluster, code: int) -> None:
    with producer_of(scripted, retries=2) as producer:
        begun(producer)
        scripted.always("produce", Refuse(code))
        delivery = producer.send("t", b"value", partition=0)
        error = error_of(producer.commit_transaction)
        failed = delivery.exception(SOON)
        assert isinstance(failed, RetriesExhaustedError)
        assert isinstance(error.__cause__, RetriesExhaustedError)
        assert type_of(error) == "A"
        assert (error.code, error.outcome) == (code, NOT)
        assert f"{format_error_code(code)} (after 2 retries)" in str(error)
        scripted.always("produce", proceed)
        assert_goes_on(producer, "A")
    assert values(scripted) == [b"next"]


@pytest.mark.parametrize("code", ABORTABLE, ids=named)
def test_a_code_that_fails_the_transaction(scripted: ScriptedCluster, code: int) -> None:
    with producer_of(scripted, linger_ms=60_000) as producer:
        begun(producer)
        other = producer.send("t", b"other", partition=1)
        scripted.always("produce", Refuse(code, only=[("t", 0)]))
        delivery = producer.send("t", b"value", partition=0)
        error = error_of(producer.commit_transaction)
        failed = delivery.exception(SOON)
        assert isinstance(failed, BrokerRejectedError)
        assert isinstance(failed, kafka_class(code))
        assert (failed.code, failed.partition) == (code, 0)
        assert isinstance(other.exception(SOON), TransactionAbortedError | None)
        assert type_of(error) == "A"
        assert isinstance(error, kafka_class(code))
        assert isinstance(error.__cause__, BrokerRejectedError)
        assert (error.code, error.outcome) == (code, NOT)
        assert_flags(error)
        text = str(error)
        assert text.startswith("transactional id 'orders-0': the transaction must be aborted: ")
        assert f"topic 't' partition 0: the broker rejected it: {format_error_code(code)}" in text
        assert ADVICE.get(code, "") in text
        scripted.always("produce", proceed)
        assert_goes_on(producer, "A")
    assert values(scripted) == [b"next"]
    assert [each.value for each in scripted.log("t", 1, committed=True)] == []


@pytest.mark.parametrize(("code", "kind"), FATAL.items())
def test_a_code_that_is_fatal(scripted: ScriptedCluster, code: int, kind: str) -> None:
    with producer_of(scripted) as producer:
        begun(producer)
        scripted.next("produce", Refuse(code))
        delivery = producer.send("t", b"value", partition=0)
        error = error_of(producer.commit_transaction)
        assert isinstance(delivery.exception(SOON), BrokerRejectedError)
        assert type_of(error) == kind
        assert (error.code, error.outcome) == (code, NOT)
        where = f"PRODUCE returned {format_error_code(code)} for topic 't' partition 0"
        assert where in str(error)
        assert_flags(error)
        assert_goes_on(producer, kind)
    assert values(scripted) == []
    assert_successor_works(scripted)


def test_a_batch_whose_older_one_is_on_its_way_waits_for_it(scripted: ScriptedCluster) -> None:
    settings = {"linger_ms": 60_000, "batch_max_messages": 1}
    with producer_of(scripted, **settings) as producer:
        begun(producer)
        scripted.next("produce", Refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        for value in (b"1", b"2"):
            producer.send("t", value, partition=0)
        producer.commit_transaction()
    assert values(scripted) == [b"1", b"2"]


def test_the_status_of_messages_whose_transaction_failed(scripted: ScriptedCluster) -> None:
    with producer_of(scripted) as producer:
        begun(producer)
        scripted.next("produce", Refuse(ErrorCode.INVALID_RECORD), Refuse(4711))
        refused = producer.send("t", b"value", partition=0).exception(SOON)
        producer.abort_transaction()
        producer.begin_transaction()
        unknown = producer.send("t", b"value", partition=0).exception(SOON)
        producer.abort_transaction()
    assert isinstance(refused, BrokerRejectedError)
    assert isinstance(unknown, BrokerRejectedError)
    assert (refused.status, unknown.status) == (Status.NOT_PERSISTED, Status.POSSIBLY_PERSISTED)


@pytest.mark.parametrize("code", [ErrorCode.POLICY_VIOLATION, ErrorCode.INVALID_PRODUCER_EPOCH])
def test_messages_of_a_rejected_batch_have_its_error(
    scripted: ScriptedCluster, code: ErrorCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the one of other messages, although these fail while the batch is being settled."""
    with producer_of(scripted, linger_ms=60_000) as producer:
        begun(producer)
        deliveries = [producer.send("t", b"%d" % i, partition=0) for i in range(2)]
        pipeline = producer._pipeline
        assert pipeline is not None
        coordinator, dispatcher = pipeline.coordinator, pipeline.dispatcher
        assert coordinator is not None
        fails_all, settled, put = threading.Event(), threading.Event(), coordinator.put
        deliveries[-1].add_done_callback(lambda _: settled.set())
        take_held = dispatcher._take_held

        def before_all_fail() -> None:
            fails_all.set()
            take_held()

        def report(item: CoordinatorItem) -> None:
            put(item)
            if isinstance(item, RowFailed) and not fails_all.is_set():
                monkeypatch.setattr(dispatcher, "_take_held", before_all_fail)
                assert fails_all.wait(SOON)
                # The dispatcher would settle them now.
                assert not settled.wait(0.2)

        monkeypatch.setattr(coordinator, "put", report)
        scripted.always("produce", Refuse(code))
        error_of(producer.commit_transaction)
        assert fails_all.is_set()
        for delivery in deliveries:
            assert isinstance(delivery.exception(SOON), kafka_class(code))
        scripted.always("produce", proceed)
