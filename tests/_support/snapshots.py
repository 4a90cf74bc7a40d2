"""Sample ``stats()`` of a producer."""

from __future__ import annotations

import copy
from typing import Any

NOTHING = {"count": 0, "mean": None, "p50": None, "p95": None, "p99": None, "max": None}
SOME = {"count": 9, "mean": 2.0, "p50": 1.5, "p95": 4.0, "p99": 8.0, "max": 16.0}


def stage(name: str, **more: Any) -> dict[str, Any]:
    return {
        "stage": name,
        "name": f"app-{name.lower()}",
        "alive": True,
        "inbox": 0,
        "rows": 0,
        "bytes": 0,
        "oldest_s": None,
        **more,
    }


SNAPSHOT: dict[str, Any] = {
    "client_id": "app",
    "pid": 4711,
    "time": 1_800_000_000.5,
    "started": 1_799_996_400.5,
    "state": "running",
    "messages": {"accepted": 1000, "delivered": 900, "failed": 10, "pending": 90},
    "bytes": {"accepted": 100_000, "delivered": 90_000},
    "buffer": {"limit": 33_554_432, "used": 1_000_000, "waiting_senders": 2},
    "requests": {
        "sent": 50,
        "answered": 47,
        "lost": 1,
        "retried_batches": 3,
        "batches": 60,
        "throttle_ms": 1500,
    },
    "latency_ms": {"delivery": SOME, "request": {**SOME, "max": 10.0}, "queue": NOTHING},
    "cluster_error": None,
    "stages": [
        stage("Dispatcher", inbox=1),
        stage("TopicWorker", topic="events", rows=5, bytes=500, oldest_s=0.25),
        stage("PartitionWorker", topic="events", partition=0, rows=1, bytes=10, oldest_s=0.5),
        stage("PartitionWorker", topic="events", partition=1, rows=2, bytes=20, oldest_s=1.5),
        stage("BrokerWorker", broker=1, rows=40, bytes=4000, alive=False),
        stage("Bridge", broker=1),
        stage("RetryHandler"),
        stage("Reports"),
        stage("Metadata"),
    ],
    "brokers": [
        {
            "id": 1,
            "address": "kafka-1:9092",
            "state": "connected",
            "references": 2,
            "unanswered_requests": 3,
            "last_error": None,
        },
        {
            "id": 2,
            "address": "kafka-2:9092",
            "state": "down",
            "references": 0,
            "unanswered_requests": 0,
            "last_error": "connection refused",
        },
    ],
    "topics": [
        {"topic": "events", "partitions": 2, "error": None},
        {"topic": "gone", "partitions": 0, "error": "UnknownTopicOrPartitionError"},
    ],
    "partitions": [
        {
            "topic": "events",
            "partition": number,
            "leader": 1,
            "level": number,
            "unanswered_batches": 1,
            "waiting_rows": 10 + number,
            "waiting_bytes": 1000,
            "delivered": 400 + 100 * number,
            "bytes": 45_000,
        }
        for number in (0, 1)
    ],
    "transactions": None,
}

#: ``transactions`` of a producer with an open transaction.
TRANSACTIONS: dict[str, Any] = {
    "transactional_id": "orders-0",
    "state": "open",
    "state_s": 0.25,
    "serial": 43,
    "protocol": 2,
    "producer_id": 4000,
    "producer_epoch": 49,
    "assigned_s": 0.5,
    "assignments": 50,
    "open_s": 0.25,
    "partitions": 3,
    "coordinator": "kafka-1:9092",
    "error": None,
    "committed": 40,
    "aborted": 2,
    "fenced": 0,
}


def snapshot(**more: Any) -> dict[str, Any]:
    """Return a separate snapshot, updated with *more*."""
    return {**copy.deepcopy(SNAPSHOT), **more}


class Said:
    """A source of stats that returns the given values."""

    def __init__(self, **more: Any) -> None:
        self.snapshot = snapshot(**more)

    def stats(self) -> dict[str, Any]:
        return self.snapshot
