"""Waiting for a producer id."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from pykaproducer._errors.codes import ErrorCode
from pykaproducer._pipeline.last_errors import LastErrors
from pykaproducer._pipeline.producer_id import ProducerIdCame, ProducerIds
from pykaproducer._wire.messages import ProducerIdAnswer
from pykaproducer.config import Config
from pykaproducer.testing import FakeClock

CONFIG = Config.from_kwargs({"bootstrap_servers": "localhost:9092"})


class Waiter:
    def __init__(self) -> None:
        self.items: list[Any] = []

    def put(self, item: Any) -> None:
        self.items.append(item)


def refused() -> ProducerIdAnswer:
    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return ProducerIdAnswer(error_code=code, producer_id=-1, producer_epoch=-1, throttle_ms=0)


def test_a_broker_that_has_just_started_is_no_reason_for_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    ids = ProducerIds(CONFIG, clock, LastErrors())
    with caplog.at_level(logging.DEBUG, "pykaproducer"):
        ids.came(refused())
        assert not caplog.records
        clock.jump(5.0)
        for _ in range(3):
            ids.came(refused())
        (warning,) = caplog.records
    assert warning.levelno == logging.WARNING
    assert "COORDINATOR_LOAD_IN_PROGRESS" in warning.getMessage()


def test_a_stage_that_asks_again_and_again_waits_once() -> None:
    """Each time a partition moves to another leader while no id arrives, a stage asks for one."""
    ids, waiter = ProducerIds(CONFIG, FakeClock(), LastErrors()), Waiter()
    for _ in range(1000):
        ids.want(waiter, None)  # type: ignore[arg-type]
    ids.came(ProducerIdAnswer(error_code=0, producer_id=1, producer_epoch=0, throttle_ms=0))
    assert [type(item) for item in waiter.items] == [ProducerIdCame]
    assert ids.due() is None
