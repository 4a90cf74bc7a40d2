"""Who waits for a producer id."""

from __future__ import annotations

from typing import Any

from pykaproducer._pipeline.producer_id import ProducerIdCame, ProducerIds
from pykaproducer._pipeline.trouble import Trouble
from pykaproducer._wire.kafka_python import ProducerIdAnswer
from pykaproducer.config import Config
from pykaproducer.testing import FakeClock


class Waiter:
    def __init__(self) -> None:
        self.items: list[Any] = []

    def put(self, item: Any) -> None:
        self.items.append(item)


def test_a_stage_that_asks_again_and_again_waits_once() -> None:
    """Each time that a partition moves to another leader while no id comes, a stage asks."""
    config = Config.from_kwargs({"bootstrap_servers": "localhost:9092"})
    ids, waiter = ProducerIds(config, FakeClock(), Trouble()), Waiter()
    for _ in range(1000):
        ids.want(waiter, None)  # type: ignore[arg-type]
    ids.came(ProducerIdAnswer(error_code=0, producer_id=1, producer_epoch=0, throttle_ms=0))
    assert waiter.items == [ProducerIdCame()]
    assert not ids.is_wanted
