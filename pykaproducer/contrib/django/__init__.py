"""Django: producers from the settings, messages sent on commit, a check, a command.

::

    INSTALLED_APPS = [..., "pykaproducer.contrib.django"]
    PYKAPRODUCER = {"bootstrap_servers": "127.0.0.1:9092"}

    from pykaproducer.contrib.django import producer, send_on_commit

    producer.send("clicks", b"...")             # immediately
    send_on_commit("orders", b"...", key=b"7")  # only when the transaction commits

``PYKAPRODUCER`` has the settings of one producer, or, like ``DATABASES``, those of several by their
aliases, one of which is ``"default"``. A producer is created on first use, once per process. It may
be used before the server forks its workers. Accepted messages are delivered at exit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

try:
    import django as _  # noqa: F401
except ImportError as error:
    raise ImportError(
        "pykaproducer.contrib.django needs Django: pip install 'pykaproducer[django]'"
    ) from error

from pykaproducer.contrib.django.commit import send_on_commit
from pykaproducer.contrib.django.producers import ProducerProxy, get_producer

if TYPE_CHECKING:
    from pykaproducer.producer import Producer

__all__ = ["get_producer", "producer", "send_on_commit"]

#: The producer with the alias ``"default"``, created on first use.
producer = cast("Producer", ProducerProxy("default"))
