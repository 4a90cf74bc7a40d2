"""The same transactions with confluent-kafka and with the drop-in, on the same broker.

Each scenario is played twice. Each of its steps is compared: what it raises, with the code and the
flags of its ``KafkaError``. What differs on purpose is listed with the scenario, and in
``docs/migration-confluent.rst``.
"""

from __future__ import annotations

import contextlib
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from kafka import TopicPartition

from tests.transactions.helper import wait_until_ended

from .helper import SOON, Calls
from .play import Differences, Play, Stage

#: confluent-kafka warns when it closes a producer that cannot abort.
pytestmark = pytest.mark.filterwarnings("ignore:Producer abort_transaction failed")
#: A call whose timeout is meant to pass (seconds).
BRIEFLY = 0.3

MUST_ABORT = "txn_requires_abort"
#: produce() has the flags here, so that a program can decide what to do.
PRODUCE_MUST_ABORT = ("_STATE", f"_STATE {MUST_ABORT}")
PRODUCE_FATAL = ("_FATAL", "_FATAL fatal")
AFTER_A_FAILURE: Differences = {"produce": PRODUCE_MUST_ABORT}
FENCED = "_FENCED fatal"


def test_offsets_that_take_longer(stage: Stage) -> None:
    def scenario(play: Play) -> None:
        for end in ("commit", "abort"):
            producer = play.begun()
            offsets, metadata = play.offsets(), play.metadata()
            send_offsets = producer.send_offsets_to_transaction
            play.proxy.black_hole()
            play.step(f"{end}: offsets", send_offsets, offsets, metadata, BRIEFLY)
            if end == "abort":
                play.proxy.restore()
                play.step("abort", producer.abort_transaction, SOON)
                play.step("begin", producer.begin_transaction)
                continue
            play.step("begin in it", producer.begin_transaction)
            play.proxy.restore()
            play.step("offsets at last", send_offsets, offsets, metadata, SOON)
            play.step("commit", producer.commit_transaction, SOON)

    stage.compare(scenario, {"begin in it": ("_STATE", "_CONFLICT retriable")})


# Failed messages ----------------------------------------------------------------------------------


def fail(play: Play, producer: Any, produce: Callable[..., object]) -> None:
    """Play what follows a failed message."""
    reports = Calls()
    produce(on_delivery=lambda error, message: reports(error and error.name()))
    play.step("flush", producer.flush, SOON)
    play.steps["report"] = str(reports)
    offsets, metadata = play.offsets(), play.metadata()
    play.step("commit", producer.commit_transaction, SOON)
    play.step("commit again", producer.commit_transaction, SOON)
    play.step("begin", producer.begin_transaction)
    play.step("offsets", producer.send_offsets_to_transaction, offsets, metadata, SOON)
    play.step("init", producer.init_transactions, SOON)
    play.step("produce", producer.produce, play.topic, b"value")
    play.step("abort", producer.abort_transaction, SOON)
    play.step("next begin", producer.begin_transaction)
    play.step("next produce", producer.produce, play.topic, b"value")
    play.step("next commit", producer.commit_transaction, SOON)


def test_a_message_that_the_broker_refuses(stage: Stage) -> None:
    def scenario(play: Play) -> None:
        producer = play.begun()
        fail(play, producer, lambda **more: producer.produce(play.topic, bytes(3_000), **more))

    next_commit = (f"OUT_OF_ORDER_SEQUENCE_NUMBER {MUST_ABORT}", "fine")
    stage.compare(scenario, {**AFTER_A_FAILURE, "next commit": next_commit})


def test_a_topic_that_does_not_exist(stage: Stage) -> None:
    def scenario(play: Play) -> None:
        producer = play.begun(message__timeout__ms=1_500)
        fail(play, producer, lambda **more: producer.produce("no-such", b"value", **more))

    stage.compare(scenario, AFTER_A_FAILURE)


def test_a_message_without_an_answer(stage: Stage) -> None:
    def scenario(play: Play) -> None:
        producer = play.begun(message__timeout__ms=1_500)
        producer.produce(play.topic, b"value")
        producer.flush(SOON)

        def produce(**more: Any) -> None:
            play.proxy.black_hole()
            producer.produce(play.topic, b"lost", **more)
            deadline = time.monotonic() + SOON
            while len(producer) and time.monotonic() < deadline:
                producer.poll(0.05)
            play.proxy.restore()

        fail(play, producer, produce)

    # The request and its message expire together. If librdkafka looks at its requests first, it
    # puts the message back into the queue, and no longer names the error of the request.
    in_the_queue = {f"_INCONSISTENT {MUST_ABORT}": f"_TIMED_OUT {MUST_ABORT}"}
    stage.compare(scenario, AFTER_A_FAILURE, in_the_queue)


def test_purge_of_the_queue(stage: Stage) -> None:
    def scenario(play: Play) -> None:
        producer = play.begun(linger__ms=10_000)

        def produce(**more: Any) -> None:
            producer.produce(play.topic, b"purged", **more)
            play.step("purge", producer.purge)

        fail(play, producer, produce)

    stage.compare(scenario, AFTER_A_FAILURE)


def test_purge_of_messages_in_flight(stage: Stage) -> None:
    def scenario(play: Play) -> None:
        producer = play.begun(linger__ms=0)
        producer.produce(play.topic, b"value")
        producer.flush(SOON)

        def produce(**more: Any) -> None:
            play.proxy.delay(3)
            producer.produce(play.topic, b"purged", **more)
            assert play.proxy.wait_for(lambda: play.proxy.unanswered, SOON)
            play.step("purge", producer.purge)
            play.proxy.restore()

        fail(play, producer, produce)

    both = (f"_PURGE_INFLIGHT {MUST_ABORT}", f"_INCONSISTENT {MUST_ABORT}")
    codes = dict.fromkeys(("commit", "commit again", "begin", "offsets", "init"), both)
    stage.compare(scenario, {**AFTER_A_FAILURE, **codes})


def test_purge_of_nothing(stage: Stage) -> None:
    def scenario(play: Play) -> None:
        producer = play.producer()
        play.step("purge a new one", producer.purge)
        producer.init_transactions(SOON)
        play.step("purge when ready", producer.purge)
        play.step("begin", producer.begin_transaction)
        play.step("purge when empty", producer.purge)
        play.step("produce", producer.produce, play.topic, b"value")
        play.step("purge neither", producer.purge, False, False)
        play.step("flush", producer.flush, SOON)
        play.step("purge when delivered", producer.purge)
        play.step("commit", producer.commit_transaction, SOON)

    stage.compare(scenario)


# Other producers, and timeouts --------------------------------------------------------------------


@pytest.mark.parametrize("first", ["commit", "abort", "offsets"])
def test_another_producer_with_the_id(stage: Stage, first: str) -> None:
    def scenario(play: Play) -> None:
        name = play.unique_name()
        older = play.begun(transactional__id=name)
        older.produce(play.topic, b"value")
        older.flush(SOON)
        newer = play.producer(transactional__id=name)
        newer.init_transactions(SOON)
        calls: dict[str, Callable[[], object]] = {
            "commit": lambda: older.commit_transaction(SOON),
            "abort": lambda: older.abort_transaction(SOON),
            "offsets": lambda: older.send_offsets_to_transaction(
                play.offsets(), play.metadata(), SOON
            ),
        }
        play.step("first", calls[first])
        for call, make in calls.items():
            play.step(call, make)
        play.step("begin", older.begin_transaction)
        play.step("init", older.init_transactions, SOON)
        play.step("produce", older.produce, play.topic, b"value")
        play.step("newer: begin", newer.begin_transaction)
        play.step("newer: produce", newer.produce, play.topic, b"value")
        play.step("newer: commit", newer.commit_transaction, SOON)

    differs: Differences = {"produce": PRODUCE_FATAL}
    if first == "offsets":
        # The same code may also mean that the brokers have timed out the transaction.
        abortable = FENCED, f"INVALID_PRODUCER_EPOCH {MUST_ABORT}"
        differs |= {"first": abortable, "commit": abortable}
    stage.compare(scenario, differs)


def test_a_message_after_another_producer_has_the_id(stage: Stage) -> None:
    def scenario(play: Play) -> None:
        name = play.unique_name()
        older = play.begun(transactional__id=name)
        play.producer(transactional__id=name).init_transactions(SOON)
        play.step("produce", older.produce, play.topic, b"value")
        with contextlib.suppress(play.library.KafkaException):
            older.flush(SOON)
        play.step("commit", older.commit_transaction, SOON)
        play.step("abort", older.abort_transaction, SOON)
        play.step("begin", older.begin_transaction)
        play.step("produce again", older.produce, play.topic, b"value")

    # A broker refuses the message in the same way after a timeout of the transaction, after which
    # the drop-in goes on.
    differs: Differences = {
        "commit": (FENCED, f"INVALID_PRODUCER_EPOCH {MUST_ABORT}"),
        "produce again": PRODUCE_FATAL,
    }
    stage.compare(scenario, differs)


def test_a_transaction_that_took_too_long(stage: Stage) -> None:
    def scenario(play: Play) -> None:
        producer = play.begun(transaction__timeout__ms=1_000)
        producer.produce(play.topic, b"value")
        producer.flush(SOON)
        places = [TopicPartition(play.topic, 0)]
        wait_until_ended(play._cluster.bootstrap_servers, places, time.monotonic() + SOON)
        play.step("commit", producer.commit_transaction, SOON)
        play.step("abort", producer.abort_transaction, SOON)
        play.step("begin", producer.begin_transaction)

    # The drop-in goes on.
    differs: Differences = {
        "commit": (FENCED, f"_INCONSISTENT {MUST_ABORT}"),
        "abort": (FENCED, "fine"),
        "begin": (FENCED, "fine"),
    }
    stage.compare(scenario, differs)


def test_a_timeout_that_the_brokers_refuse(stage: Stage) -> None:
    def scenario(play: Play) -> None:
        producer = play.producer(transaction__timeout__ms=2**31 - 1)
        play.step("init", producer.init_transactions, SOON)
        play.step("init again", producer.init_transactions, SOON)

    # The drop-in can initialize again, for example when a right has been granted.
    both = ("INVALID_TRANSACTION_TIMEOUT fatal", "INVALID_TRANSACTION_TIMEOUT")
    stage.compare(scenario, {"init": both, "init again": both})


# Offsets ------------------------------------------------------------------------------------------


def test_the_arguments_for_offsets(stage: Stage) -> None:
    def scenario(play: Play) -> None:
        producer = play.begun()
        offsets, good = play.offsets(), play.metadata()
        send_offsets = producer.send_offsets_to_transaction
        for group in ("name", None, 5, bytearray(good), b"", b"nonsense"):
            play.step(f"group {group!r}"[:20], send_offsets, offsets, group, SOON)
        play.step("group cut off", send_offsets, offsets, good[:-3], SOON)
        play.step("group too long", send_offsets, offsets, good + b"x", SOON)
        for wrong in (None, "x", ["x"], [("t", 0, 5)], [], play.offsets(-1)):
            play.step(f"offsets {wrong!r}"[:20], send_offsets, wrong, good, SOON)
        play.step("no group", send_offsets, offsets)
        play.step("timeout", send_offsets, offsets, good, "1")
        play.step("correct", send_offsets, offsets, good, SOON)
        play.step("commit", producer.commit_transaction, SOON)

    stage.compare(scenario)


def test_offsets_that_the_group_refuses(stage: Stage) -> None:
    def scenario(play: Play) -> None:
        producer = play.producer()
        producer.init_transactions(SOON)
        member = b"CGMDv2:" + struct.pack("=i", 3) + play.unique_name().encode() + b"\0member\0\1"
        for what, offsets, group in (
            ("a stranger", play.offsets(), member),
            ("metadata too long", play.offsets(metadata="m" * 5_000), play.metadata()),
            ("no such partition", play.offsets(partition=77), play.metadata()),
        ):
            play.step(f"{what}: begin", producer.begin_transaction)
            play.step(what, producer.send_offsets_to_transaction, offsets, group, 3)
            play.step(f"{what}: commit", producer.commit_transaction, SOON)
            play.step(f"{what}: produce", producer.produce, play.topic, b"value")
            play.step(f"{what}: abort", producer.abort_transaction, SOON)

    reasons = ("a stranger", "metadata too long", "no such partition")
    stage.compare(scenario, {f"{reason}: produce": PRODUCE_MUST_ABORT for reason in reasons})


# Callbacks ----------------------------------------------------------------------------------------


def test_callbacks_are_served_by_the_calls(stage: Stage) -> None:
    def scenario(play: Play) -> None:
        producer = play.begun(linger__ms=10_000)
        served = Calls()
        mine = threading.get_ident()

        def report(error: Any, message: Any) -> None:
            served((message.value(), error and error.name(), threading.get_ident() == mine))

        for number in range(3):
            producer.produce(play.topic, b"%d" % number, on_delivery=report)
        play.step("commit", producer.commit_transaction, SOON)
        play.steps["served by it"] = str(served)
        served.clear()
        play.step("begin", producer.begin_transaction)
        producer.produce(play.topic, b"aborted", on_delivery=report)
        play.step("abort", producer.abort_transaction, SOON)
        play.steps["served by the abort"] = str(served)

    stage.compare(scenario)


@pytest.mark.parametrize("end", ["commit_transaction", "abort_transaction"])
def test_a_callback_that_raises_does_not_prevent_the_end(stage: Stage, end: str) -> None:
    def scenario(play: Play) -> None:
        producer = play.begun()

        def raises(error: object, message: object) -> None:
            raise LookupError("mine")

        producer.produce(play.topic, b"value", on_delivery=raises)
        play.step("end", getattr(producer, end), SOON)
        play.step("end again", getattr(producer, end), SOON)
        play.step("begin", producer.begin_transaction)

    stage.compare(scenario)
