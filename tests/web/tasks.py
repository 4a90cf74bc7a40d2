"""Celery tasks of a pool of processes that share a producer made before it forks.

Nothing is delivered before a flush: messages in the log were delivered at the exit.
"""

from __future__ import annotations

import os
import pathlib

from celery import Celery

from pykaproducer import Producer

app = Celery("tasks")
app.conf.broker_url = "filesystem://"
app.conf.broker_transport_options = {
    "data_folder_in": os.environ["QUEUE"],
    "data_folder_out": os.environ["QUEUE"],
    "control_folder": os.environ["QUEUE"],
}
producer = Producer(
    bootstrap_servers=os.environ["KAFKA_SERVERS"],
    linger_ms=60_000,
    exit_flush_timeout_ms=float(os.environ["FLUSH_MS"]),
)


@app.task
def send(name: str) -> None:
    """Send a message, and record that in a file."""
    producer.send(os.environ["TOPIC"], name.encode())
    pathlib.Path(os.environ["DONE"], name).write_text(str(os.getpid()))
