"""Responses that a proxy changes, with kafka-python's encoder: see ``FaultProxy.alter()``."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from kafka.protocol.metadata import MetadataResponse
from kafka.protocol.producer import ProduceResponse

PRODUCE, METADATA = 0, 3

_NOT_ENOUGH_REPLICAS = 19

Change = Callable[[int, bytes], bytes]


def old_view(topic: str, partitions: Iterable[Any]) -> Change:
    """Change Metadata to the leaders and epochs of *partitions* of an earlier response."""
    before = {each.partition_index: each for each in partitions}

    def change(response: Any) -> None:
        for each in response.topics:
            for partition in each.partitions if each.name == topic else ():
                old = before.get(partition.partition_index, partition)
                partition.leader_id, partition.leader_epoch = old.leader_id, old.leader_epoch

    return partial(_changed, MetadataResponse, change)


def holes(topic: str, seed: int) -> Change:
    """Change Metadata so that partitions, the topic or brokers are missing or doubled."""
    chance = random.Random(seed)

    def change(response: Any) -> None:
        response.brokers = _with_holes(response.brokers, chance)
        if chance.random() < 0.2:
            response.topics = _with_holes(response.topics, chance)
        for each in response.topics:
            if each.name == topic:
                each.partitions = _with_holes(each.partitions, chance)
                for partition in chance.sample(each.partitions, len(each.partitions) // 3):
                    again = copy.copy(partition)
                    again.leader_id, again.leader_epoch = -1, partition.leader_epoch - 1
                    each.partitions.append(again)

    return partial(_changed, MetadataResponse, change)


def _with_holes(entries: Iterable[Any], chance: random.Random) -> list[Any]:
    """Return *entries* in another order, each not at all, once or twice."""
    found = [each for each in entries for _ in range(chance.choice((0, 1, 1, 2)))]
    chance.shuffle(found)
    return found


def refused(topic: str) -> Change:
    """Change Produce responses so that each batch for *topic* fails with a retriable error."""

    def change(response: Any) -> None:
        for each in response.responses:
            for partition in each.partition_responses if each.name == topic else ():
                partition.error_code, partition.base_offset = _NOT_ENOUGH_REPLICAS, -1

    return partial(_changed, ProduceResponse, change)


def _changed(kind: Any, change: Callable[[Any], None], version: int, response: bytes) -> bytes:
    # The correlation id, and an empty list of tagged fields.
    start = 5 if kind.flexible_version_q(version) else 4
    decoded = kind.decode(response[start:], version=version)
    change(decoded)
    return response[:start] + bytes(decoded.encode())
