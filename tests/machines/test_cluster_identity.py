"""What the cluster id of a response means."""

from __future__ import annotations

import pytest

from pykaproducer._machines.cluster_identity import Arrival, ClusterIdentity


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (["a", "a"], [Arrival.SAME, Arrival.SAME]),
        (
            ["a", "b", "b", "a"],
            [Arrival.SAME, Arrival.UNANNOUNCED, Arrival.SAME, Arrival.UNANNOUNCED],
        ),
        # Old brokers, and some that only speak Kafka's protocol, send no ids.
        ([None, None, "a"], [Arrival.SAME, Arrival.SAME, Arrival.SAME]),
        (["a", None, "a"], [Arrival.SAME, Arrival.SAME, Arrival.SAME]),
        (["a", None, "b"], [Arrival.SAME, Arrival.SAME, Arrival.UNANNOUNCED]),
    ],
)
def test_without_a_rebootstrap(ids: list[str | None], expected: list[Arrival]) -> None:
    identity = ClusterIdentity()
    assert [identity.answered(each) for each in ids] == expected


@pytest.mark.parametrize(
    ("cluster_id", "expected"), [("a", Arrival.SAME), ("b", Arrival.OTHER), (None, Arrival.OTHER)]
)
def test_after_a_rebootstrap(cluster_id: str | None, expected: Arrival) -> None:
    identity = ClusterIdentity()
    identity.answered("a")
    identity.rebootstrapped()
    assert identity.answered(cluster_id) is expected
    assert identity.answered(cluster_id) is Arrival.SAME
