"""Reading the controllers' metadata log, for what no API tells: which disks they know.

A controller moves the partitions of a failed disk only if the broker has reported on which disk
each of them is, which it does some time after their creation (KIP-858). The log of each combined
broker contains the controllers' decisions as record batches. The value of a record is a frame: a
version, the type of the record, the version of that type, and the record with compact fields.
"""

from __future__ import annotations

import struct
from pathlib import Path

from kafka.record import MemoryRecords

from pykaproducer._wire.reader import Reader

#: The frame of the records that are read here. The byte between the two is the type's version.
_FRAME = 1
_PARTITION, _PARTITION_CHANGE, _REMOVE_TOPIC = 3, 5, 9
#: The tagged fields of a PartitionChangeRecord.
_REPLICAS, _DIRECTORIES = 2, 8
#: The beginning of the ids that stand for no directory (``DirectoryId``): lost, or not reported.
_NO_DIRECTORY = bytes(15)

_head = struct.Struct(">i16s")
_topic_id = struct.Struct(">16s")
_directory = struct.Struct(">16s")
#: The leader, its epoch, and the epoch of the partition.
_leader = struct.Struct(">iii")

#: A topic's id and a partition.
Place = tuple[bytes, int]


def partitions_on_unknown_disks(directory: Path, broker: int) -> set[Place]:
    """Return the partitions of *broker* whose disk its controllers do not know yet.

    *directory* contains the log: ``__cluster_metadata-0`` below the first disk of any broker.

    Raises:
        WireError: a record is malformed, or has an unknown format.
    """
    replicas: dict[Place, list[int]] = {}
    disks: dict[Place, list[bytes]] = {}
    for file in sorted(directory.glob("*.log")):
        for batch in MemoryRecords(file.read_bytes()):
            if batch.is_control_batch:
                continue
            for record in batch:
                _apply(bytes(record.value), replicas, disks)
    return {
        place
        for place, brokers in replicas.items()
        if broker in brokers and disks[place][brokers.index(broker)].startswith(_NO_DIRECTORY)
    }


def _apply(value: bytes, replicas: dict[Place, list[int]], disks: dict[Place, list[bytes]]) -> None:
    frame, kind, _ = value[:3]
    if frame != _FRAME:
        return
    reader = Reader(value[3:], flexible=True)
    if kind == _REMOVE_TOPIC:
        (removed,) = reader.fields(_topic_id)
        for place in [place for place in replicas if place[0] == removed]:
            del replicas[place], disks[place]
    elif kind == _PARTITION:
        partition, topic = reader.fields(_head)
        replicas[topic, partition] = _numbers(reader)
        reader.skip_numbers(3)  # in-sync, removing, adding replicas
        reader.fields(_leader)
        disks[topic, partition] = _directories(reader)
    elif kind == _PARTITION_CHANGE:
        partition, topic = reader.fields(_head)
        for tag, field in reader.tags():
            if tag == _REPLICAS:
                replicas[topic, partition] = _numbers(field)
            elif tag == _DIRECTORIES:
                disks[topic, partition] = _directories(field)


def _numbers(reader: Reader) -> list[int]:
    return [reader.int32() for _ in range(reader.array())]


def _directories(reader: Reader) -> list[bytes]:
    return [reader.fields(_directory)[0] for _ in range(reader.array())]
