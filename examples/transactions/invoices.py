"""An invoice for each order, exactly once: consume, transform, produce, commit.

::

    python invoices.py

It reads the orders that ``orders.py`` has sent to ``shop-orders``, and sends an invoice for each to
``shop-invoices``. The invoices and the offsets of the orders are committed in one transaction.
However the program ends, and whenever it is started again, readers with
``isolation_level="read_committed"`` see one invoice for each order.
"""

import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any

from kafka import KafkaConsumer, TopicPartition

from pykaproducer import Producer, TransactionAbortableError

SERVERS = os.environ.get("KAFKA_SERVERS", "localhost:9092")
#: The program ends after this many failures in sequence: for example, a right is missing.
TRIES = 5
#: The same after a restart, and another one for each program that runs at the same time.
NAME = os.environ.get("INVOICES_NAME", "invoices-0")

Batch = dict[TopicPartition, list[Any]]


def invoice_for(order: bytes) -> bytes:
    """Return the invoice for an order."""
    found = json.loads(order)
    return json.dumps({"order": found["id"], "items": len(found["parcels"])}).encode()


def send_invoices(producer: Producer, consumer: KafkaConsumer, batch: Batch) -> None:
    """Send the invoices for a batch of orders, and commit them together with its offsets."""
    with producer.transaction() as transaction:
        for orders in batch.values():
            for order in orders:
                producer.send("shop-invoices", invoice_for(order.value), key=order.key)
        offsets = {partition: orders[-1].offset + 1 for partition, orders in batch.items()}
        transaction.send_offsets(offsets, consumer)


def go_back(consumer: KafkaConsumer, batch: Batch) -> None:
    """Have the consumer read a batch again that was not committed."""
    for partition, orders in batch.items():
        consumer.seek(partition, orders[0].offset)


def batches_of(consumer: KafkaConsumer) -> Iterator[Batch]:
    """Yield the batches that the consumer reads."""
    while True:
        batch = consumer.poll(timeout_ms=1_000)
        if batch:
            yield batch


def main() -> None:
    """Send invoices until the program is interrupted, or another one has taken over its name."""
    with Producer(bootstrap_servers=SERVERS, transactional_id=NAME) as producer:
        # Before the consumer reads its offsets: this ends what the last run has left open.
        producer.init_transactions()
        consumer = KafkaConsumer(
            "shop-orders",
            bootstrap_servers=SERVERS,
            group_id="invoices",
            group_instance_id=NAME,  # after a restart it gets its partitions back at once
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            max_poll_records=100,
        )
        with contextlib.closing(consumer):
            failures = 0
            for batch in batches_of(consumer):
                try:
                    send_invoices(producer, consumer, batch)
                except TransactionAbortableError as error:
                    failures += 1
                    if failures == TRIES:
                        raise
                    print(f"again: {error}")
                    go_back(consumer, batch)
                else:
                    failures = 0
                    print(f"invoices: {sum(map(len, batch.values()))}", flush=True)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
