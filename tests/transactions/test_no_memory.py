"""Failures in a transaction for which there is no memory."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from pykaproducer import Status
from pykaproducer.errors import DeliveryError, TransactionAbortedError
from pykaproducer.testing import ScriptedCluster
from pykaproducer.testing.scripted import Hold
from tests._support.no_memory import needs_hook
from tests.pipeline.helper import SOON

from .scripted_helper import begun, producer_of


@needs_hook
def test_a_failure_without_memory(
    scripted: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its allocations is refused in turn: the other messages can fail after it."""
    testcapi: Any = pytest.importorskip("_testcapi")
    errors = {each: DeliveryError("refused", status=each, topic="t") for each in Status}
    with producer_of(scripted) as producer:
        begun(producer)
        hold = Hold()
        scripted.next("produce", hold)
        deliveries = [producer.send("t", b"%d" % i, partition=0) for i in range(2)]
        hold.wait_until_held()
        pipeline = producer._pipeline
        assert pipeline is not None
        chunk, settler = pipeline.incomplete.chunks()[0], pipeline.settler
        # Nothing else runs while allocations are refused.
        monkeypatch.setattr(settler, "on_failure", lambda: lambda _: None)
        kept: list[object] = []
        gc.disable()
        for number in range(60):
            parts = [chunk.pick([0])]
            kept += [(n, n, n) for n in range(3_000)]  # the interpreter has no free ones then
            testcapi.set_nomemory(number, number + 1)
            try:
                settler.fail(parts, errors.__getitem__)
            except MemoryError:
                pass
            finally:
                testcapi.remove_mem_hooks()
            assert not settler.failing.locked()
        gc.enable()
        monkeypatch.undo()
        producer.fail_transaction(LookupError("another reason"))
        assert isinstance(deliveries[1].exception(SOON), TransactionAbortedError)
        assert str(deliveries[0].exception(SOON)).startswith("refused")
        hold.release()
        producer.abort_transaction()
