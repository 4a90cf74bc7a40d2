"""The logs and the committed offsets as other clients see them, bypassing the proxies.

A partition is read twice: everything, in raw batches with the markers of transactions; and what is
committed, by kafka-python's consumer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from kafka.protocol.consumer.fetch import FetchRequest
from kafka.record.default_records import ControlRecord
from kafka.record.memory_records import MemoryRecords

from chaos.readback import PATIENCE, LogUnreadable, consume, consumer_of, places
from chaos.stage import Stage, wait_for
from chaos.transactions.audit import Entry, Log, Marker
from chaos.transactions.history import decode
from pykaproducer.testing import _admin
from pykaproducer.testing._transaction_messages import FindCoordinatorRequest, OffsetFetchRequest

T = TypeVar("T")

_FETCH_VERSION, _FETCH_BYTES = 11, 8 * 1024 * 1024
#: OffsetFetch with ``require_stable`` (KIP-447), and FindCoordinator with one key.
_OFFSETS_VERSION, _FIND_VERSION = 7, 3
TRANSACTIONAL_ID, GROUP = 1, 0


def read(stage: Stage, patience: float) -> dict[int, Log]:
    """Return every partition, once no transaction is open, or after *patience* seconds."""
    stable, ends = _ends(stage, patience)
    logs = {place.partition: Log(end=ends[place], stable=stable[place]) for place in ends}
    for partition, leader in stage.leaders().items():
        _read_raw(stage, partition, stage.cluster.brokers[leader].port, logs[partition])

    def readable(partition: int, each: Any) -> None:
        entry = Entry(each.offset, decode(each.value), timestamp=each.timestamp / 1000)
        logs[partition].readable.append(entry)

    consume(stage, stable, readable, "read_committed")
    return logs


def _ends(stage: Stage, patience: float) -> tuple[Any, Any]:
    """Return the last stable offsets and the ends, which are the same unless one is open."""
    everything, committed = consumer_of(stage), consumer_of(stage, "read_committed")
    try:
        known = everything.end_offsets(places(stage))

        def ended() -> bool:
            stable = committed.end_offsets([*known])
            return all(stable[place] >= end for place, end in known.items())

        wait_for(ended, patience)
        # Markers have been written in the meantime.
        ends = everything.end_offsets([*known])
        return committed.end_offsets([*known]), ends
    finally:
        everything.close()
        committed.close()


def _read_raw(stage: Stage, partition: int, port: int, log: Log) -> None:
    offset, deadline = 0, time.monotonic() + PATIENCE
    while offset < log.end:
        (topic,) = _admin.ask(port, _fetch(stage.topic, partition, offset), PATIENCE).responses
        (answer,) = topic.partitions
        _admin.check(answer.error_code, f"read partition {partition}", None)
        for batch in MemoryRecords(bytes(answer.records or b"")):
            if batch.next_offset <= offset:
                continue
            log.raw += _entries(batch)
            offset, deadline = batch.next_offset, time.monotonic() + PATIENCE
        if time.monotonic() > deadline:
            raise LogUnreadable(f"partition {partition} ends at {log.end}, not {offset}")


def _fetch(topic: str, partition: int, offset: int) -> Any:
    wanted = FetchRequest.FetchTopic
    return FetchRequest(
        version=_FETCH_VERSION,
        replica_id=-1,
        max_wait_ms=100,
        min_bytes=0,
        max_bytes=_FETCH_BYTES,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[
            wanted(
                topic=topic,
                partitions=[
                    wanted.FetchPartition(
                        partition=partition,
                        current_leader_epoch=-1,
                        fetch_offset=offset,
                        log_start_offset=-1,
                        partition_max_bytes=_FETCH_BYTES,
                    )
                ],
            )
        ],
        forgotten_topics_data=[],
        rack_id="",
    )


def _entries(batch: Any) -> Iterable[Entry | Marker]:
    for record in batch:
        if isinstance(record, ControlRecord):
            yield Marker(record.offset, batch.producer_id, batch.producer_epoch, record.commit)
        else:
            yield Entry(
                record.offset,
                decode(record.value),
                batch.producer_id,
                batch.producer_epoch,
                record.timestamp / 1000,
            )


# Coordinators -------------------------------------------------------------------------------------


def coordinator(ports: Iterable[int], kind: int, key: str) -> int | None:
    """Return the broker that coordinates a transactional id or a group; None: unknown now."""
    request = FindCoordinatorRequest(version=_FIND_VERSION, key=key, key_type=kind)
    for port in ports:
        try:
            answer = _admin.ask(port, request, _admin.REQUEST_TIMEOUT)
        except OSError:
            continue
        if not answer.error_code:
            return int(answer.node_id)
    return None


def committed_offsets(
    ports: list[int], group: str, topic: str, partitions: int, patience: float = PATIENCE
) -> dict[int, int]:
    """Return the stable offsets of a group, 0 where it has none; *ports* are those of brokers.

    It waits while a transaction with offsets of the group is open.
    """
    wanted = OffsetFetchRequest.OffsetFetchRequestTopic(
        name=topic, partition_indexes=list(range(partitions))
    )

    def fetch() -> dict[int, int] | None:
        broker = coordinator(ports, GROUP, group)
        if broker is None:
            return None
        request = OffsetFetchRequest(
            version=_OFFSETS_VERSION, group_id=group, topics=[wanted], require_stable=True
        )
        answer = _admin.ask(ports[broker], request, _admin.REQUEST_TIMEOUT)
        found = [each for topic in answer.topics for each in topic.partitions]
        if answer.error_code or len(found) < partitions or any(each.error_code for each in found):
            return None
        return {each.partition_index: max(0, each.committed_offset) for each in found}

    return _repeated(fetch, f"offsets of group {group}", patience)


def _repeated(function: Callable[[], T | None], what: str, patience: float) -> T:
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        try:
            found = function()
        except OSError:
            found = None
        if found is not None:
            return found
        time.sleep(0.05)
    raise LogUnreadable(f"no answer: {what}")
