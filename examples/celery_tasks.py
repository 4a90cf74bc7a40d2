"""Celery tasks that send messages, in a pool of processes.

::

    celery --app celery_tasks worker --concurrency 3
    python -c "from celery_tasks import greet; greet.delay('world')"
"""

import os
import pathlib

from celery import Celery

from pykaproducer import Producer

app = Celery("celery_tasks")

# A message queue without a server, for local tests: tasks are files in a directory.
QUEUE = pathlib.Path(os.environ.get("CELERY_QUEUE", "celery-queue"))
for folder in ("tasks", "control"):
    (QUEUE / folder).mkdir(parents=True, exist_ok=True)
app.conf.broker_url = "filesystem://"
app.conf.broker_transport_options = {
    "data_folder_in": str(QUEUE / "tasks"),
    "data_folder_out": str(QUEUE / "tasks"),
    "control_folder": str(QUEUE / "control"),
}

# Created before the pool forks. In each process it is empty, and connects on first use.
producer = Producer(bootstrap_servers=os.environ.get("KAFKA_SERVERS", "localhost:9092"))


@app.task
def greet(name: str) -> None:
    """Send a greeting. It is delivered in the background, at the latest when the process ends."""
    producer.send("greetings", f"hello {name}".encode())
