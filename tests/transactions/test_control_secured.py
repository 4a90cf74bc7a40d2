"""``TransactionControl`` over encrypted connections, and without rights."""

from __future__ import annotations

import pytest

from pykaproducer import EndState, TopicPartition, TransactionControl, TransactionError
from pykaproducer.testing import KafkaCluster, Security
from pykaproducer.transaction_control import CommittedOffset

pytestmark = pytest.mark.full


def test_large_answers_over_tls() -> None:
    """Several connections are waited for at once, and TLS has data that no socket shows."""
    security = Security("SASL_SSL", mechanism="SCRAM-SHA-256")
    with (
        KafkaCluster(security=security, fast_start=True) as secured,
        TransactionControl(**secured.settings()) as control,
    ):
        secured.create_topic("t", partitions=100)
        stored = {
            TopicPartition("t", n): CommittedOffset(n + 1, -1, f"{n:04}" * 1024) for n in range(100)
        }
        groups = [f"readers-{n}" for n in range(3)]
        begun = control.initialize("driver", 60_000)
        control.commit_offsets(begun, dict.fromkeys(groups, stored))
        assert control.complete(begun, commit=True).state is EndState.COMMITTED
        assert control.offsets(groups, {"t": range(100)}) == dict.fromkeys(groups, stored)
        assert len(control.describe([f"id-{n}" for n in range(1200)])) == 1200


def test_a_right_is_missing() -> None:
    security = Security("SASL_PLAINTEXT", mechanism="PLAIN", authorize=True)
    with (
        KafkaCluster(security=security, fast_start=True) as secured,
        TransactionControl(**secured.settings()) as control,
    ):
        assert control.list() == ()
        for call in (
            lambda: control.fence(["orders"]),
            lambda: control.initialize("orders", 60_000),
        ):
            with pytest.raises(TransactionError) as raised:
                call()
            assert raised.value.code == 53
            assert "'orders'" in str(raised.value)
            assert "on the transactional id" in str(raised.value)
        assert control.describe(["orders"])["orders"].error_code == 53
        with pytest.raises(TransactionError, match="grant this client Describe on the group"):
            control.offsets(["readers"])
