"""Sealing the batches of transactions, broker by broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pykaproducer._kernel import Slice
from pykaproducer._machines.batch import Batch
from pykaproducer._machines.batcher import batcher_for
from pykaproducer._machines.coordination import TV1, TV2
from pykaproducer._machines.partition_buffer import PartitionBuffer
from pykaproducer._machines.sequencing import ProducerId, Sequencer
from pykaproducer._machines.transaction_states import TransactionView
from pykaproducer._machines.window import Window
from pykaproducer._pipeline.metrics import ProducerMetrics
from pykaproducer._pipeline.request_builder import RequestBuilder, new_sealer
from pykaproducer._pipeline.shortage import Shortage
from pykaproducer.config import Config
from tests.kernel.helper import TOPIC, Door, split

ADDED = frozenset({(TOPIC, 0)})
CONFIG = Config.from_kwargs({"bootstrap_servers": "127.0.0.1:1", "transactional_id": "id"})


class Transactions:
    """What the BrokerWorkers see of the coordinator's stage, and the messages of a program."""

    def __init__(self, protocol: int = TV2) -> None:
        self.door = Door()
        self.asked: list[Any] = []
        self.view = TransactionView(protocol=protocol)
        self.begin(ProducerId(7, 3))

    def put(self, item: Any) -> None:
        self.asked.append(item)

    def begin(self, producer: ProducerId, **how: Any) -> None:
        self.view = TransactionView(self.view.serial + 1, True, producer, self.view.protocol, **how)

    def end(self) -> None:
        self.view = TransactionView(self.view.serial, False, self.view.producer, self.view.protocol)

    def part(self) -> Slice:
        self.door.send(TOPIC, b"value", partition=0)
        (part,) = split(self.door.chunk(), 1).values()
        return part


class FakeWorker(SimpleNamespace):
    """What a RequestBuilder uses of its BrokerWorker."""

    __hash__ = object.__hash__

    def put(self, item: Any) -> None:
        self.items.append(item)


class Broker:
    """The batches of one broker."""

    def __init__(self, transactions: Transactions) -> None:
        self.transactions = transactions
        clock = transactions.door.clock
        self.worker: Any = FakeWorker(
            clock=clock,
            metrics=ProducerMetrics(30.0, 2),
            shortage=Shortage("broker", clock),
            items=[],
        )
        self.batcher = batcher_for(CONFIG, 16384)
        self.builder = RequestBuilder(
            self.worker,
            config=CONFIG,
            batcher=self.batcher,
            window=Window(limit=5, most=1 << 20, timeout=30.0),
            sealer=new_sealer(CONFIG, self.batcher, None, self.worker.metrics),
            responses=None,  # type: ignore[arg-type]
            metadata=None,  # type: ignore[arg-type]
            last_errors=None,  # type: ignore[arg-type]
            coordinator=transactions,  # type: ignore[arg-type]
        )

    def add(self, buffer: PartitionBuffer, item: Slice | Batch) -> None:
        self.batcher.add(buffer, item, self.transactions.door.clock.monotonic())

    def seal(self) -> list[Batch]:
        self.builder.look()
        return self.builder.seal(self.transactions.door.clock.monotonic(), flushing=True)

    def fail(self, buffer: PartitionBuffer, batch: Batch) -> list[Any]:
        """Return what is to be retried after *batch* was refused."""
        buffer.answered(batch)
        buffer.fail(batch)
        self.batcher.reschedule(buffer)
        return buffer.drain_for_retry()[0]


def new_buffer(sequencer: Sequencer) -> PartitionBuffer:
    return PartitionBuffer(TOPIC, 0, sequencer)


@pytest.fixture
def transactions() -> Transactions:
    return Transactions()


@pytest.mark.parametrize("moves", [False, True], ids=["stays", "moves"])
def test_a_batch_that_is_retried_keeps_its_number(transactions: Transactions, moves: bool) -> None:
    """Also if another broker leads the partition now, which knows nothing of it."""
    first, second = Broker(transactions), Broker(transactions)
    sequencer = Sequencer()
    buffer = new_buffer(sequencer)
    first.add(buffer, transactions.part())
    (batch,) = first.seal()
    (retried,) = first.fail(buffer, batch)
    broker, buffer = (second if moves else first), new_buffer(sequencer)
    broker.add(buffer, retried)
    broker.add(buffer, transactions.part())
    sealed = []
    for _ in range(2):
        (found,) = broker.seal()
        sealed.append(found)
        buffer.answered(found)
        sequencer.delivered(found.number)
        broker.batcher.reschedule(buffer)
    assert sealed[0] is batch
    assert [each.first_sequence for each in sealed] == [0, 1]


@pytest.mark.parametrize("protocol", [TV1, TV2])
def test_a_batch_of_an_ended_transaction_is_no_write(protocol: int) -> None:
    """The next transaction is empty, and ends without EndTxn."""
    transactions = Transactions(protocol)
    transactions.begin(ProducerId(7, 3), added=ADDED)
    broker, sequencer = Broker(transactions), Sequencer()
    buffer, part = new_buffer(sequencer), transactions.part()
    broker.add(buffer, part)
    (batch,) = broker.seal()
    retried = broker.fail(buffer, batch)
    transactions.end()
    for each in batch.parts:
        each.fail(LookupError("not written"), TimeoutError("perhaps written"))
    transactions.begin(ProducerId(7, 4))
    buffer = new_buffer(sequencer)
    for item in retried:
        broker.add(buffer, item)
    assert broker.seal() == []
    assert transactions.view.touch.at is None
    assert transactions.asked == []
    assert not buffer.pending
    transactions.begin(ProducerId(7, 4), added=ADDED)
    broker.add(buffer, transactions.part())
    (batch,) = broker.seal()
    assert transactions.view.touch.at is not None
    assert (batch.producer_epoch, batch.first_sequence) == (4, 0)


def test_nothing_is_sealed_between_transactions(transactions: Transactions) -> None:
    broker, buffer = Broker(transactions), new_buffer(Sequencer())
    transactions.end()
    broker.add(buffer, transactions.part())
    assert broker.seal() == []
    transactions.begin(ProducerId(7, 4))
    (batch,) = broker.seal()
    assert batch.producer_epoch == 4


def test_only_the_first_request_of_a_transaction_is_measured(transactions: Transactions) -> None:
    brokers = [Broker(transactions), Broker(transactions)]
    for first in (True, False):
        for broker in brokers:
            broker.add(new_buffer(Sequencer()), transactions.part())
            request = broker.builder.request(broker.seal())
            is_first = first and broker is brokers[0]
            assert request.first_of is (transactions.view.touch if is_first else None)


def test_what_was_to_be_measured_is_forgotten_with_its_transaction(
    transactions: Transactions,
) -> None:
    broker = Broker(transactions)
    broker.add(new_buffer(Sequencer()), transactions.part())
    assert broker.seal()
    transactions.begin(ProducerId(7, 4))
    assert transactions.view.touch.claim_produce()  # by another broker
    broker.add(new_buffer(Sequencer()), transactions.part())
    assert broker.builder.request(broker.seal()).first_of is None


def test_when_the_first_batch_may_be_sealed(transactions: Transactions) -> None:
    builder = Broker(transactions).builder
    assert builder.not_before == 0.0
    transactions.begin(ProducerId(7, 4), not_before=1234.5)
    builder.look()
    assert builder.not_before == 1234.5
    transactions.end()
    builder.look()
    assert builder.not_before == 0.0


def test_a_partition_is_added_before_its_batch_is_sealed() -> None:
    transactions = Transactions(TV1)
    broker, buffer = Broker(transactions), new_buffer(Sequencer())
    broker.add(buffer, transactions.part())
    assert broker.seal() == []
    (asked,) = transactions.asked
    assert (asked.serial, asked.topic, asked.partition) == (1, TOPIC, 0)
    view = transactions.view
    transactions.view = TransactionView(
        view.serial, True, view.producer, TV1, ADDED, touch=view.touch
    )
    assert [batch.first_sequence for batch in broker.seal()] == [0]
