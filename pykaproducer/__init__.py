"""A Kafka producer with background threads, each of which does one task.

>>> from pykaproducer import Producer
>>> with Producer(bootstrap_servers="127.0.0.1:9092") as producer:
...     delivery = producer.send("events", b"value", key=b"key")
...     metadata = delivery.result(timeout=10)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

try:
    import pykaproducer._kernel as _kernel
except ModuleNotFoundError as error:
    raise ImportError(
        "pykaproducer's compiled kernel is missing. In a directory with the sources, Python "
        "imports those instead of the installed package: run it from another directory, or build "
        "them in place with `pip install -e .`"
    ) from error
except ImportError as error:
    raise ImportError(
        f"pykaproducer's compiled kernel cannot be loaded: {str(error).rstrip('.')}. If another "
        f"interpreter of this process has loaded it (mod_wsgi with several applications), run each "
        f"application in a separate process, with WSGIApplicationGroup %{{GLOBAL}}"
    ) from error
from pykaproducer._version import VERSION
from pykaproducer.block import BlockDelivery, BlockFailures, BlockMetadata
from pykaproducer.delivery import Delivery, RecordMetadata, Status, TopicPartition
from pykaproducer.errors import (
    AbortedError,
    BrokerRejectedError,
    BufferFullError,
    CallbackThreadError,
    CommitOutcome,
    ConfigurationError,
    DeliveryError,
    DeliveryFailures,
    DeliveryTimeoutError,
    FlushTimeoutError,
    ForkedProducerError,
    MessageTooLargeError,
    MetadataTimeoutError,
    OutcomeTimeoutError,
    PartitionerError,
    ProducerBrokenError,
    ProducerClosedError,
    ProducerFencedError,
    PykaproducerError,
    RetriesExhaustedError,
    TransactionAbortableError,
    TransactionAbortedError,
    TransactionError,
    TransactionFatalError,
    TransactionStateError,
    TransactionTimeoutError,
    UnsupportedFeatureError,
)
from pykaproducer.producer import Producer
from pykaproducer.transactions import PreparedTransaction

if TYPE_CHECKING:
    from pykaproducer.kafka_python.producer import KafkaProducer
    from pykaproducer.transaction_control import Ended, EndState, TransactionControl

del _kernel

__version__ = VERSION

__all__ = [
    "AbortedError",
    "BlockDelivery",
    "BlockFailures",
    "BlockMetadata",
    "BrokerRejectedError",
    "BufferFullError",
    "CallbackThreadError",
    "CommitOutcome",
    "ConfigurationError",
    "Delivery",
    "DeliveryError",
    "DeliveryFailures",
    "DeliveryTimeoutError",
    "EndState",
    "Ended",
    "FlushTimeoutError",
    "ForkedProducerError",
    "KafkaProducer",
    "MessageTooLargeError",
    "MetadataTimeoutError",
    "OutcomeTimeoutError",
    "PartitionerError",
    "PreparedTransaction",
    "Producer",
    "ProducerBrokenError",
    "ProducerClosedError",
    "ProducerFencedError",
    "PykaproducerError",
    "RecordMetadata",
    "RetriesExhaustedError",
    "Status",
    "TopicPartition",
    "TransactionAbortableError",
    "TransactionAbortedError",
    "TransactionControl",
    "TransactionError",
    "TransactionFatalError",
    "TransactionStateError",
    "TransactionTimeoutError",
    "UnsupportedFeatureError",
]

#: Imported on first use, as few programs need them.
_LATER = {
    "Ended": "pykaproducer.transaction_control",
    "EndState": "pykaproducer.transaction_control",
    "KafkaProducer": "pykaproducer.kafka_python.producer",
    "TransactionControl": "pykaproducer.transaction_control",
}


def __getattr__(name: str) -> Any:
    module = _LATER.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(module), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
