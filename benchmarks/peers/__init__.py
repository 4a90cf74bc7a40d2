"""The table of all clients, ours first, with how each is run.

Python clients run in a fresh process of :mod:`benchmarks.child`; the others are separate programs.
The processes of peers import this module too, so nothing here imports pykaproducer at the top.
"""

from __future__ import annotations

from benchmarks.peers.go import GoProgram
from benchmarks.peers.java import Java
from benchmarks.peers.java_transactions import JavaTransactions
from benchmarks.peers.peer import Feature, Peer, Unavailable
from benchmarks.peers.python import PythonClient

__all__ = ["JAVA_TRANSACTIONS", "NAMES", "TABLE", "VARIANTS", "Feature", "Peer", "Unavailable"]

_NO_LEVELS = frozenset({Feature.LEVELS})
_NO_OFFSETS = frozenset({Feature.OFFSETS})

TABLE: dict[str, Peer] = {
    "pykaproducer": PythonClient("pykaproducer", "pykaproducer"),
    "confluent-kafka": PythonClient("confluent-kafka", "confluent_kafka"),
    "kafka-python": PythonClient("kafka-python", "kafka", _NO_LEVELS),
    "aiokafka": PythonClient("aiokafka", "aiokafka", _NO_LEVELS),
    "franz-go": GoProgram("franz-go", "github.com/twmb/franz-go", _NO_OFFSETS),
    "sarama": GoProgram("sarama", "github.com/IBM/sarama"),
    "java": Java(),
    # Not a client: the limit of the broker and its socket.
    "raw": PythonClient("raw", None, frozenset({Feature.TOPICS}), outcome="batches"),
}

NAMES = tuple(TABLE)

#: Java in the benchmark of transactions.
JAVA_TRANSACTIONS: Peer = JavaTransactions()

#: pykaproducer with other settings.
VARIANTS: dict[str, Peer] = {
    name: PythonClient(name, "pykaproducer")
    for name in ("metrics-off", "watched", "own-threads", "tv1")
}
VARIANTS |= {
    name: PythonClient(name, "pykaproducer", _NO_OFFSETS) for name in ("idempotent", "flushing")
}
VARIANTS |= {
    name: PythonClient(name, library)
    for name, library in (
        ("as-confluent-kafka", "confluent_kafka"),
        ("as-kafka-python", "kafka"),
    )
}
TABLE |= VARIANTS
