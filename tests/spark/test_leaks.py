"""The search for what outlives a test, in a process with a Spark session."""

from __future__ import annotations

import threading
from typing import Any

from tests._support.fixtures import leaks

SOON = 30.0


def test_connections_of_the_jvm_are_not_those_of_a_test(spark: Any) -> None:
    """The JVM may connect to Py4J's callback server at any time."""
    from pyspark.java_gateway import ensure_callback_server_started

    gateway = spark.sparkContext._gateway
    ensure_callback_server_started(gateway)
    port = gateway.get_callback_server().get_listening_port()
    threads, sockets = set(threading.enumerate()), leaks._sockets()
    connection = gateway.jvm.java.net.Socket("127.0.0.1", port)
    try:
        moment = threading.Event()
        for _ in range(int(SOON / 0.05)):
            started, found = leaks._started_since(threads), leaks._sockets() - sockets
            idents, theirs = leaks._of_spark()
            if started and found and {each.ident for each in started} <= idents and found <= theirs:
                break
            moment.wait(0.05)
        else:
            raise AssertionError("Py4J's thread and socket are not recognised")
        assert not leaks._new_sockets(sockets)
    finally:
        connection.close()
