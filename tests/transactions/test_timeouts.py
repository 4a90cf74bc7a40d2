"""Timeouts that are negative are as 0, as in ``flush()`` and ``result()``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pykaproducer import Producer
from pykaproducer.errors import TransactionStateError
from pykaproducer.testing import ScriptedCluster
from tests.transactions.scripted_helper import PLACE, begun, producer_of

#: Calls that do not fit after a commit.
REFUSED: dict[str, Callable[[Producer, float], Any]] = {
    "commit_transaction": lambda producer, timeout: producer.commit_transaction(timeout),
    "abort_transaction": lambda producer, timeout: producer.abort_transaction(timeout),
    "prepare_transaction": lambda producer, timeout: producer.prepare_transaction(timeout),
    "send_offsets_to_transaction": lambda producer, timeout: producer.send_offsets_to_transaction(
        {PLACE: 1}, "readers", timeout=timeout
    ),
}


@pytest.mark.parametrize("timeout", [0, -1, -1e9])
@pytest.mark.parametrize("call", sorted(REFUSED))
def test_a_call_that_does_not_fit(scripted: ScriptedCluster, call: str, timeout: float) -> None:
    """The error is that of the call, and not that of a timeout."""
    with producer_of(scripted) as producer:
        begun(producer)
        producer.send("t", b"value", partition=0)
        producer.commit_transaction()
        with pytest.raises(TransactionStateError, match=r"\(\): there is no transaction") as raised:
            REFUSED[call](producer, timeout)
        assert raised.value.outcome is None


@pytest.mark.parametrize("timeout", [0, -1])
def test_init_transactions_that_has_no_effect(scripted: ScriptedCluster, timeout: float) -> None:
    with producer_of(scripted) as producer:
        producer.init_transactions()
        producer.init_transactions(timeout)
