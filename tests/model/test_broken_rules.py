"""The model detects broken rules: each rule that preserves the order is removed in turn."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis.stateful import run_state_machine_as_test

from pykaproducer._machines.backlog import Backlog
from pykaproducer._machines.batch import Batch, Chaser
from pykaproducer._machines.ordering import Effect, Forward, Item, Ordering
from pykaproducer._machines.partition_buffer import PartitionBuffer
from pykaproducer._machines.sequencing import Sequencer
from pykaproducer._pipeline.broker import BrokerWorker

from .machine import Model, ModelWithoutIdempotence
from .promises import ViolationError
from .stages import ModelPipeline

BOUNDED = settings(
    max_examples=300,
    stateful_step_count=80,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    verbosity=Verbosity.quiet,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def assert_found(model: type[Model], promise: str, *, within: int = 300) -> None:
    """Check that a sequence violates *promise*; *within*: how many are tried at most."""
    with pytest.raises(ViolationError, match=promise):
        run_state_machine_as_test(model, settings=settings(BOUNDED, max_examples=within))


# The three repairs of the algorithm in the document of Sarama's wiki ------------------------------


class ImpatientBuffer(PartitionBuffer):
    """Hands back failed batches and the chaser while older batches are in flight."""

    def drain_for_retry(self) -> tuple[list[Batch | Backlog | Chaser], list[Batch]]:
        unanswered, self.unanswered = self.unanswered, []
        try:
            return super().drain_for_retry()
        finally:
            self.unanswered = unanswered


def test_a_chaser_that_overtakes_unanswered_batches_is_found() -> None:
    class Broken(Model):
        replaced = {"PartitionBuffer": ImpatientBuffer}

    assert_found(Broken, "P4")


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


def test_a_retry_with_other_sequence_numbers_is_found() -> None:
    class Broken(Model):
        replaced = {"PartitionBuffer": ResealingBuffer}

    assert_found(Broken, "P5")


class EagerSequencer(Sequencer):
    """Writes every sealed batch, whether or not a younger one needs it."""

    def is_needed(self, number: int, producer_id: int, epoch: int) -> bool:
        return True


def test_what_was_reported_as_failed_and_is_written_for_nothing_is_found() -> None:
    class Broken(Model):
        replaced = {"Sequencer": EagerSequencer}

    assert_found(Broken, "reported")


class GreedyPipeline(ModelPipeline):
    """Has several batches of a partition in flight although there are no sequence numbers."""

    def _new_broker_worker(self, broker_id: int) -> BrokerWorker:
        worker = super()._new_broker_worker(broker_id)
        worker._ahead._one_at_a_time = False
        return worker


def test_several_unanswered_batches_without_idempotence_are_found() -> None:
    class Broken(ModelWithoutIdempotence):
        pipeline_type = GreedyPipeline

    assert_found(Broken, "P4")


class ForgetfulRetryBuffer(PartitionBuffer):
    """Hands back every item but the first with its old level."""

    def drain_for_retry(self) -> tuple[list[Batch | Backlog | Chaser], list[Batch]]:
        again, ambiguous = super().drain_for_retry()
        for item in again[1:]:
            if not isinstance(item, Chaser):
                item.level = 0
        return again, ambiguous


def test_a_backlog_below_the_level_of_its_elders_is_found() -> None:
    class Broken(Model):
        replaced = {"PartitionBuffer": ForgetfulRetryBuffer}

    assert_found(Broken, "P4")


# The table of transitions ------------------------------------------------------------------------


class Unbuffered(Ordering):
    """Passes on an item below the watermark instead of buffering it."""

    def item(self, item: Item) -> list[Effect]:
        if item.level < self.high_watermark and self.has_path:
            return [Forward(item)]
        return super().item(item)


class UnbufferedPipeline(ModelPipeline):
    ordering = Unbuffered


def test_an_item_that_is_not_kept_is_found() -> None:
    # Without idempotence a buffer hands everything back in one piece, so nothing can come between.
    class Broken(Model):
        pipeline_type = UnbufferedPipeline

    assert_found(Broken, "P4")
