"""The model detects broken rules: each rule that preserves the order is removed in turn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import Phase, Verbosity, settings
from hypothesis.stateful import run_state_machine_as_test

from pykaproducer._machines.backlog import Backlog
from pykaproducer._machines.batch import Batch, Chaser
from pykaproducer._machines.ordering import Effect, Forward, Item, Ordering
from pykaproducer._machines.partition_buffer import PartitionBuffer
from pykaproducer._machines.sequencing import Sequencer
from pykaproducer._machines.transaction_states import IllegalTransactionMove
from pykaproducer._pipeline.broker import BrokerWorker

from .machine import Model, ModelWithoutIdempotence
from .promises import ViolationError
from .stages import ModelPipeline
from .test_model import NORMAL

BOUNDED = settings(
    NORMAL,
    max_examples=300,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    verbosity=Verbosity.quiet,
)


def assert_found(model: type[Model], promise: str, *, within: int = 300) -> None:
    """Check that a sequence violates *promise*; *within*: how many are tried at most."""
    # A broken state machine may notice first what cannot be.
    with pytest.raises((ViolationError, IllegalTransactionMove), match=promise):
        run_state_machine_as_test(model, settings=settings(BOUNDED, max_examples=within))


def buffer(kind: type[PartitionBuffer]) -> dict[str, Any]:
    return {"replaced": {"PartitionBuffer": kind}}


# The three repairs of the algorithm in the document of Sarama's wiki ------------------------------


class ImpatientBuffer(PartitionBuffer):
    """Hands back failed batches and the chaser while older batches are in flight."""

    def drain_for_retry(self) -> tuple[list[Batch | Backlog | Chaser], list[Batch]]:
        unanswered, self.unanswered = self.unanswered, []
        try:
            return super().drain_for_retry()
        finally:
            self.unanswered = unanswered


class ResealingBuffer(PartitionBuffer):
    """Seals retried batches again, with other sequence numbers."""

    def drain_for_retry(self) -> tuple[list[Batch | Backlog | Chaser], list[Batch]]:
        again, ambiguous = super().drain_for_retry()
        return [part for item in again for part in _unsealed(item)], ambiguous


def _unsealed(item: Batch | Backlog | Chaser) -> Iterator[Batch | Backlog | Chaser]:
    if isinstance(item, Batch):
        yield Backlog(item.topic, item.partition, item.level, item.unseal())
    else:
        yield item


class EagerSequencer(Sequencer):
    """Writes every sealed batch, whether or not a younger one needs it."""

    def is_needed(self, number: int, producer_id: int, epoch: int) -> bool:
        return True


class GreedyPipeline(ModelPipeline):
    """Has several batches of a partition in flight although there are no sequence numbers."""

    def _new_broker_worker(self, broker_id: int) -> BrokerWorker:
        worker = super()._new_broker_worker(broker_id)
        worker._ahead._one_at_a_time = False
        return worker


class ForgetfulRetryBuffer(PartitionBuffer):
    """Hands back every item but the first with its old level."""

    def drain_for_retry(self) -> tuple[list[Batch | Backlog | Chaser], list[Batch]]:
        again, ambiguous = super().drain_for_retry()
        for item in again[1:]:
            if not isinstance(item, Chaser):
                item.level = 0
        return again, ambiguous


# The table of transitions ------------------------------------------------------------------------


class Unbuffered(Ordering):
    """Passes on an item below the watermark instead of buffering it."""

    def item(self, item: Item) -> list[Effect]:
        if item.level < self.high_watermark and self.has_path:
            return [Forward(item)]
        return super().item(item)


class UnbufferedPipeline(ModelPipeline):
    ordering = Unbuffered


#: What is broken: the model in which it is found, what is replaced in it, and the promise.
RULES: dict[str, tuple[type[Model], dict[str, Any], str]] = {
    "a chaser overtakes unanswered batches": (Model, buffer(ImpatientBuffer), "P4"),
    "a retry has other sequence numbers": (Model, buffer(ResealingBuffer), "P5"),
    "what has failed is written for nothing": (
        Model,
        {"replaced": {"Sequencer": EagerSequencer}},
        "reported",
    ),
    "several unanswered batches without idempotence": (
        ModelWithoutIdempotence,
        {"pipeline_type": GreedyPipeline},
        "P4",
    ),
    "a backlog below the level of its elders": (Model, buffer(ForgetfulRetryBuffer), "P4"),
    # Without idempotence a buffer hands everything back in one piece, so nothing can come between.
    "an item is not kept": (Model, {"pipeline_type": UnbufferedPipeline}, "P4"),
}


#: This one needs seconds.
_RARE = "what has failed is written for nothing"


@pytest.mark.parametrize(
    ("model", "broken", "promise"),
    [
        pytest.param(*rule, id=name, marks=pytest.mark.full if name == _RARE else ())
        for name, rule in RULES.items()
    ],
)
def test_a_broken_rule_is_found(model: type[Model], broken: dict[str, Any], promise: str) -> None:
    assert_found(type("Broken", (model,), broken), promise)
