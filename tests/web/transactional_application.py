"""A WSGI application with a transaction for each request, made before gunicorn forks workers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from pykaproducer import Producer, PykaproducerError

TOPIC = os.environ["TOPIC"]

producer = Producer(
    bootstrap_servers=os.environ["KAFKA_SERVERS"], transactional_id=f"{TOPIC}-master"
)
producer.init_transactions(60)
# Still open when the workers are forked: it is the transaction of this process.
producer.begin_transaction()
producer.send(TOPIC, b"of the master", partition=0).result(60)


def application(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
    """Write the path to two partitions, and answer with the worker's process id."""
    value = environ["PATH_INFO"].removeprefix("/").encode()
    try:
        with producer.transaction():
            for partition in (0, 1):
                producer.send(TOPIC, value, partition=partition)
    except PykaproducerError as error:
        start("503 Service Unavailable", [("Content-Type", "text/plain")])
        return [str(error).encode()]
    start("200 OK", [("Content-Type", "text/plain")])
    return [b"%d" % os.getpid()]
