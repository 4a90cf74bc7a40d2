"""Django: producers from the settings, messages with the commit, a check, a command.

::

    INSTALLED_APPS = [..., "pykaproducer.contrib.django"]
    PYKAPRODUCER = {"bootstrap_servers": "127.0.0.1:9092"}

    from pykaproducer.contrib.django import producer, send_on_commit

    producer.send("clicks", b"...")             # at once
    send_on_commit("orders", b"...", key=b"7")  # when the transaction commits, and only then

``PYKAPRODUCER`` holds the settings of one producer, or, as ``DATABASES`` does, those of several by
their aliases, of which one is ``"default"``. A producer is made at its first use, one a process;
it may be used before the server forks its workers. What it has accepted is delivered at exit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from pykaproducer.contrib.django.commit import send_on_commit
from pykaproducer.contrib.django.producers import ProducerProxy, get_producer

if TYPE_CHECKING:
    from pykaproducer.producer import Producer

__all__ = ["get_producer", "producer", "send_on_commit"]

#: The producer with the alias ``"default"``; it is made when it is first used.
producer = cast("Producer", ProducerProxy("default"))
