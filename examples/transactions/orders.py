"""Orders and their parcels, all or nothing: a transaction for each line of JSON.

::

    printf '{"id": "1", "parcels": ["tea", "cups"]}\n' | python orders.py

An order goes to the topic ``shop-orders``, and each of its parcels to ``shop-parcels``. If a line
is wrong, readers with ``isolation_level="read_committed"`` see nothing of it, although a part of it
has been sent.
"""

import json
import os
import sys
from collections.abc import Iterable

from pykaproducer import Producer, TransactionAbortableError


def send_order(producer: Producer, line: str) -> None:
    """Send the messages of one order."""
    order = json.loads(line)
    producer.send("shop-orders", line.encode(), key=order["id"].encode())
    for parcel in order["parcels"]:
        producer.send("shop-parcels", parcel.encode(), key=order["id"].encode())


def send_orders(producer: Producer, lines: Iterable[str]) -> int:
    """Send each line in its own transaction, and return how many were committed."""
    committed = 0
    for number, line in enumerate(lines, 1):
        try:
            with producer.transaction():
                send_order(producer, line.strip())
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            print(f"line {number} is wrong: {error!r}")
        except TransactionAbortableError as error:
            print(f"line {number} was not sent: {error}")
        else:
            committed += 1
    return committed


def main() -> None:
    """Send the orders from the standard input."""
    with Producer(
        bootstrap_servers=os.environ.get("KAFKA_SERVERS", "localhost:9092"),
        # The same after a restart, and another one for each program that runs at the same time.
        transactional_id=os.environ.get("ORDERS_ID", "orders-0"),
    ) as producer:
        print(f"committed: {send_orders(producer, sys.stdin)}")


if __name__ == "__main__":
    main()
