"""Messages without a key avoid a broker that is slow for a while (KIP-794)."""

from __future__ import annotations

import pytest

from pykaproducer.testing import FakeClock, ScriptedCluster

from .helper import Held, offsets, send

ROUNDS = 300


@pytest.mark.parametrize("adaptive", [True, False])
def test_a_partition_with_a_long_queue_gets_fewer(adaptive: bool) -> None:
    clock, held = FakeClock(), Held()
    with (
        ScriptedCluster(brokers=2, topics={"t": 2}) as cluster,
        cluster.producer(
            clock=clock,
            batch_size=1000,
            partitioner="sticky",
            partitioner_adaptive_partitioning_enable=adaptive,
        ) as producer,
    ):
        cluster.next("produce", held, broker=1)
        slow = send(producer, [b"x" * 900] * 50, partition=1)
        held.wait_until_held()
        spread = []
        for _ in range(ROUNDS):
            spread.append(producer.send("t", b"y" * 900))
            # Once this is delivered, the message before it has its partition.
            offsets(send(producer, [b""], partition=0))
            clock.jump(0.02)
        held.release()
        offsets([*slow, *spread])
        to_slow = sum(delivery.partition == 1 for delivery in spread)
        assert to_slow < ROUNDS // 5 if adaptive else to_slow > ROUNDS // 3
