"""The search for what outlives a test, in a process with a Spark session."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tests._support.fixtures import leaks

SOON = 30.0


def _wait_until(true: Callable[[], object], what: str) -> None:
    moment = threading.Event()
    for _ in range(int(SOON / 0.05)):
        if true():
            return
        moment.wait(0.05)
    raise AssertionError(what)


def test_connections_of_the_jvm_are_not_those_of_a_test(spark: Any) -> None:
    """The JVM may connect to Py4J's callback server at any time."""
    from pyspark.java_gateway import ensure_callback_server_started

    gateway = spark.sparkContext._gateway
    ensure_callback_server_started(gateway)
    port = gateway.get_callback_server().get_listening_port()
    threads, sockets = set(threading.enumerate()), leaks._sockets()
    connection = gateway.jvm.java.net.Socket("127.0.0.1", port)
    try:
        _wait_until(
            lambda: leaks._started_since(threads) and leaks._sockets().keys() - sockets.keys(),
            "Py4J has started no thread",
        )
        _wait_until(lambda: not leaks._not_of_py4j(threads), "Py4J's thread is not recognised")
        assert not leaks._new_sockets(sockets)
    finally:
        connection.close()


def test_connections_to_the_jvm_are_not_those_of_a_test(spark: Any) -> None:
    """Py4J connects from each thread that calls it; one of them tells the JVM what is freed."""
    sockets = leaks._sockets()
    called, enough = threading.Event(), threading.Event()

    def call() -> None:
        spark.sparkContext._gateway.jvm.System.nanoTime()
        called.set()
        enough.wait(SOON)

    thread = threading.Thread(target=call)
    thread.start()
    try:
        assert called.wait(SOON)
        assert leaks._sockets().keys() - sockets.keys()
        assert not leaks._new_sockets(sockets)
    finally:
        enough.set()
        thread.join(SOON)
