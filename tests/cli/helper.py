"""The command line in a separate process, and kafka-python's consumer for reading back."""

from __future__ import annotations

import subprocess
import sys

from kafka import KafkaConsumer
from kafka.structs import TopicPartition

#: Refuses connections.
NOWHERE = "127.0.0.1:9"
#: How long a command may take on a busy machine (seconds).
PATIENCE = 120


def command(*arguments: str) -> list[str]:
    """Return the command line with *arguments*."""
    return [sys.executable, "-m", "pykaproducer", *arguments]


def run(*arguments: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run the command to its end."""
    return subprocess.run(
        command(*arguments), input=data, capture_output=True, timeout=PATIENCE, check=False
    )


def end_of(servers: str, topic: str, partition: int = 0) -> int:
    """Return the number of messages in a partition."""
    consumer = KafkaConsumer(bootstrap_servers=servers)
    try:
        place = TopicPartition(topic, partition)
        return int(consumer.end_offsets([place])[place])
    finally:
        consumer.close()
