"""The options of writes that are exactly once, checked when a write is planned."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest
from pyspark.sql.types import StringType, StructType

from pykaproducer._exactly_once.names import Names
from pykaproducer._exactly_once.records import BatchKey
from pykaproducer._exactly_once.setup import OnPartialCommit, Setup, WriteKind
from pykaproducer._exactly_once.task import TaskResult
from pykaproducer._load.summary import Summary
from pykaproducer.config import Config
from pykaproducer.spark.once import OnceResult, OnceWrite
from pykaproducer.spark.options import SinkError, SinkOptions
from pykaproducer.spark.sink import BatchSink, Commit

SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}
ONCE = {"exactlyOnce": "true", "transactionalIdPrefix": "shop.orders"}
LEAST = {**SERVERS, **ONCE, "topic": "orders"}


def planned(options: dict[str, str], kind: WriteKind = WriteKind.SINGLE) -> OnceWrite | None:
    return OnceWrite.of(SinkOptions.of(options), kind)


def setup_of(options: dict[str, str]) -> Setup:
    found = SinkOptions.of(options)
    assert found.once is not None
    return found.once.setup(WriteKind.STREAM, found.timeout_ms)


def test_the_defaults() -> None:
    assert setup_of(LEAST) == Setup(
        Names("shop.orders", "orders"), WriteKind.STREAM, timeout_ms=900_000
    )


def test_each_option_has_its_effect() -> None:
    found = setup_of(
        {
            **SERVERS,
            **ONCE,
            "stateTopic": "state",
            "startWithoutState": "TRUE",
            "onPartialCommit": "Skip",
            "kafka.transaction.timeout.ms": "60000",
        }
    )
    assert found == Setup(
        Names("shop.orders", "state"),
        WriteKind.STREAM,
        timeout_ms=60_000,
        may_create_state_topic=False,
        start_without_state=True,
        on_partial_commit=OnPartialCommit.SKIP,
    )


def test_without_exactly_once_nothing_changes() -> None:
    assert planned({**SERVERS, "topic": "orders"}) is None
    assert planned({**SERVERS, "topic": "orders", "exactlyOnce": "false"}) is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"exactlyOnce": "yes"}, "option exactlyOnce: 'yes' was given; allowed: true, false"),
        (
            {"exactlyOnce": "false"},
            "option transactionalIdPrefix has an effect only with exactlyOnce=true",
        ),
        (
            {"transactionalIdPrefix": None},
            "option transactionalIdPrefix is missing: set it to a name that no other query or "
            "concurrent write uses, such as shop.orders",
        ),
        (
            {"transactionalIdPrefix": "orders.1"},
            "option transactionalIdPrefix: 'orders.1' ends with a dot and a number, and the sink "
            "itself appends these for each task; use another character than the dot, such as '-'",
        ),
        (
            {"transactionalIdPrefix": ""},
            "option transactionalIdPrefix: it must not be empty",
        ),
        (
            {"transactionalIdPrefix": "an order"},
            "option transactionalIdPrefix: 'an order' was given; use ASCII letters, digits, '.', "
            "'_' and '-' only",
        ),
        (
            {"exactly": "true"},
            "option exactly is unknown; did you mean exactlyOnce? Options are kafka.SETTING, "
            "topic, onError, includeHeaders, exactlyOnce, transactionalIdPrefix, stateTopic, "
            "writeId, startWithoutState, onPartialCommit, valueFormat and those that belong to it",
        ),
        (
            {"topic": None},
            "option stateTopic is missing: set it, because rows name their topics. Any existing "
            "topic will do; nothing is written to it",
        ),
        ({"writeId": ""}, "option writeId: 0 bytes were given; use 1 to 1024"),
        ({"writeId": "ä" * 600}, "option writeId: 1200 bytes were given; use 1 to 1024"),
        (
            {"startWithoutState": "1"},
            "option startWithoutState: '1' was given; allowed: true, false",
        ),
        (
            {"onPartialCommit": "ignore"},
            "option onPartialCommit: 'ignore' was given; allowed: fail, duplicate, skip",
        ),
        (
            {"kafka.transactional.id": "mine"},
            "option kafka.transactional.id: each task needs another id; remove it, and set "
            "exactlyOnce and transactionalIdPrefix",
        ),
        (
            {"kafka.acks": "1"},
            "option kafka.acks: exactlyOnce needs acks=all; remove the option",
        ),
        (
            {"kafka.enable.idempotence": "false"},
            "option kafka.enable.idempotence: exactlyOnce needs idempotence; remove the option",
        ),
        (
            {"kafka.enable.idempotence": "false", "kafka.acks": "0"},
            "option kafka.enable.idempotence: exactlyOnce needs idempotence; remove the option",
        ),
        (
            {"kafka.retries": "0"},
            "option kafka.retries: exactlyOnce needs retries above 0; remove the option",
        ),
        (
            {"kafka.max.in.flight.requests.per.connection": "6"},
            "option kafka.max.in.flight.requests.per.connection: exactlyOnce needs at most 5 "
            "requests in flight; remove the option",
        ),
    ],
    ids=str,
)
def test_what_is_refused_names_the_remedy(changes: dict[str, str | None], said: str) -> None:
    given = {**LEAST, **changes}
    with pytest.raises(SinkError) as raised:
        SinkOptions.of({name: text for name, text in given.items() if text is not None})
    assert str(raised.value) == said


def test_a_stream_has_no_write_id() -> None:
    options = {**LEAST, "writeId": "first"}
    assert planned(options) is not None
    with pytest.raises(SinkError, match="a stream is identified by its checkpoint"):
        planned(options, WriteKind.STREAM)


def test_only_a_stream_begins_without_state() -> None:
    options = {**LEAST, "startWithoutState": "true"}
    assert planned(options, WriteKind.STREAM) is not None
    with pytest.raises(SinkError, match="option startWithoutState is for streams; a batch write"):
        planned(options)


@pytest.mark.parametrize("batch", [-1, "1", 1.0, True])
def test_a_batch_is_a_number(batch: Any) -> None:
    with pytest.raises(SinkError) as raised:
        OnceWrite.of(SinkOptions.of(LEAST), WriteKind.SINGLE, batch)
    assert str(raised.value) == f"batch must be the number of a micro-batch, not {batch!r}"


def test_a_timeout_of_transactions_without_transactions(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "pykaproducer")
    monkeypatch.setattr("pykaproducer.spark.options._logged", set())
    options = SinkOptions.of({**SERVERS, "topic": "t", "kafka.transaction.timeout.ms": "90000"})
    options.log_without_effect()
    Config.from_kwargs(options.producer_settings())  # as each task does
    assert caplog.messages == [
        "options without effect: kafka.transaction.timeout.ms (exactlyOnce is false)"
    ]


def results(*is_done: bool) -> list[OnceResult]:
    """Return the results of tasks, of which some found that their batch was committed before."""
    return [
        OnceResult(
            WriteKind.SINGLE,
            BatchKey("first", 0),
            TaskResult(task, 0, 10, 0, 3, Summary(), None, is_done=done),
        )
        for task, done in enumerate(is_done)
    ]


def test_a_repeated_write_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A summary without rows could otherwise be that of an empty DataFrame."""
    caplog.set_level(logging.INFO, "pykaproducer")

    def commit(self: OnceWrite, results: Sequence[OnceResult], batch: int | None = None) -> None:
        pass

    monkeypatch.setattr(OnceWrite, "commit", commit)
    write = planned(LEAST)
    assert write is not None
    text = "0 rows (repeated: committed before, nothing was written)"
    assert str(write.run(lambda: results(True, True))) == text
    sink = BatchSink(LEAST, StructType().add("value", StringType()), overwrite=False)
    for done, logged in ((True, f"write: {text}"), (False, "write: 0 rows (0 bytes)")):
        caplog.clear()
        sink.commit([Commit(each.result.summary, each) for each in results(True, done)])
        assert caplog.messages[-1].startswith(logged)
