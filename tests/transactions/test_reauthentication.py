"""SASL sessions that end within a transaction: each connection authenticates anew (KIP-368)."""

from __future__ import annotations

from collections import Counter

import pytest

from pykaproducer import Producer, TopicPartition, TransactionControl
from pykaproducer.testing import KafkaCluster, Security
from tests._support.fixtures.cluster import FEATURES
from tests.transactions.helper import PATIENCE

pytestmark = pytest.mark.full

#: The lifetime of a session (milliseconds).
_SESSION = 1_500
#: The connections of the producer, by the ends of their names.
_CONNECTIONS = ("metadata", "coordinator", "bridge-0", "group-0")


@pytest.mark.parametrize("protocol", [pytest.param("TV1", marks=pytest.mark.full), "TV2"])
def test_a_transaction_longer_than_several_sessions(
    protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "pykaproducer.net")
    security = Security("SASL_PLAINTEXT", mechanism="SCRAM-SHA-256", reauth_ms=_SESSION)
    place = TopicPartition("t", 0)
    with (
        KafkaCluster(security=security, features=FEATURES[protocol], fast_start=True) as secured,
        Producer(transactional_id="long", **secured.settings()) as producer,
        TransactionControl(**secured.settings()) as control,
    ):
        secured.create_topic("t", partitions=1)
        producer.init_transactions(PATIENCE)
        caplog.clear()
        with producer.transaction():
            sent = 0
            while not _each_twice(caplog):
                assert producer.send("t", b"%d" % sent).result(PATIENCE).offset == sent
                sent += 1
                producer.send_offsets_to_transaction({place: sent}, "readers")
        found = control.offsets(["readers"], {"t": [0]})["readers"]
        assert found[place].offset == sent
        assert producer.stats()["transactions"]["committed"] == 1


def _each_twice(caplog: pytest.LogCaptureFixture) -> bool:
    """Return whether each connection has authenticated anew twice, since the log was cleared."""
    again = Counter(
        record.getMessage().partition(":")[0].partition("-")[2].partition("-")[2]
        for record in caplog.records
        if "re-authenticating" in record.getMessage()
    )
    return all(again[name] >= 2 for name in _CONNECTIONS)
