"""As ``invoices.py``, for a program that was written for confluent-kafka.

::

    python invoices_confluent.py

The consumer is confluent-kafka's. The producer has the interface of confluent-kafka's, so only its
import differs from a program that uses confluent-kafka alone.
"""

import contextlib
import json
import os

import confluent_kafka
from confluent_kafka import KafkaError, TopicPartition

from pykaproducer.confluent import KafkaException, Producer

SERVERS = os.environ.get("KAFKA_SERVERS", "localhost:9092")
#: The program ends after this many failures in sequence: for example, a right is missing.
TRIES = 5
#: The same after a restart, and another one for each program that runs at the same time.
NAME = os.environ.get("INVOICES_NAME", "invoices-0")


def invoice_for(order: bytes) -> bytes:
    """Return the invoice for an order."""
    found = json.loads(order)
    return json.dumps({"order": found["id"], "items": len(found["parcels"])}).encode()


Batch = list[confluent_kafka.Message]


def send_invoices(producer: Producer, consumer: confluent_kafka.Consumer, batch: Batch) -> None:
    """Send the invoices for a batch of orders, and commit them together with its offsets."""
    producer.begin_transaction()
    for order in batch:
        producer.produce("shop-invoices", invoice_for(order.value()), key=order.key())
        producer.poll(0)
    producer.send_offsets_to_transaction(
        [TopicPartition(*place, offset + 1) for place, offset in offsets_of(batch).items()],
        consumer.consumer_group_metadata(),
    )
    producer.commit_transaction()


def offsets_of(batch: Batch) -> dict[tuple[str, int], int]:
    """Return the offset of the last message of each partition."""
    return {(each.topic(), each.partition()): each.offset() for each in batch}


def go_back(consumer: confluent_kafka.Consumer, batch: Batch) -> None:
    """Have the consumer read a batch again that was not committed."""
    for place, offset in offsets_of(batch[::-1]).items():  # of the first message of each
        consumer.seek(TopicPartition(*place, offset))


def read(consumer: confluent_kafka.Consumer) -> Batch:
    """Return the next orders; raise if the consumer has an error."""
    batch = []
    for message in consumer.consume(num_messages=100, timeout=1):
        error = message.error()
        if error is None:
            batch.append(message)
        # After a batch that took too long, the consumer rejoins its group with the next call.
        elif error.code() != KafkaError._MAX_POLL_EXCEEDED:
            raise confluent_kafka.KafkaException(error)
    return batch


def main() -> None:
    """Send invoices until the program is interrupted, or another one has taken over its name."""
    producer = Producer({"bootstrap.servers": SERVERS, "transactional.id": NAME})
    # Before the consumer reads its offsets: this ends what the last run has left open.
    producer.init_transactions()
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": SERVERS,
            "group.id": "invoices",
            "group.instance.id": NAME,  # after a restart it gets its partitions back at once
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe(["shop-orders"])
    with contextlib.closing(consumer), producer:
        failures = 0
        while True:
            batch = read(consumer)
            if not batch:
                continue
            try:
                send_invoices(producer, consumer, batch)
            except KafkaException as error:
                failures += 1
                if failures == TRIES or not error.args[0].txn_requires_abort():
                    raise
                print(f"again: {error}")
                producer.abort_transaction()
                go_back(consumer, batch)
            else:
                failures = 0
                print(f"invoices: {len(batch)}", flush=True)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
