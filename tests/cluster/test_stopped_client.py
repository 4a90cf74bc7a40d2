"""A client that is stopped (SIGSTOP) for longer than each of its timeouts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading

from pykaproducer.testing import KafkaCluster

from .readback import read_log

#: The longest that the program may take (seconds).
PATIENCE = 60
#: Longer than every timeout of the program (seconds).
STOPPED = 3.0

PROGRAM = """
    import os, signal, sys
    from pykaproducer import DeliveryTimeoutError, Producer

    servers, topic = sys.argv[1:]
    producer = Producer(bootstrap_servers=servers, delivery_timeout_ms=2000,
                        request_timeout_ms=2000, connections_max_idle_ms=1000,
                        metadata_max_age_ms=1000, linger_ms=20)
    producer.send(topic, b"first", delivery_timeout_ms=30_000).result(30)
    for _ in range(2):
        waiting = [producer.send(topic, b"%d" % number) for number in range(100)]
        os.kill(os.getpid(), signal.SIGSTOP)
        # Each has its outcome, delivered or late.
        errors = [each.exception(5) for each in waiting]
        assert all(error is None or isinstance(error, DeliveryTimeoutError) for error in errors)
        # And the next are delivered, although each timeout has passed.
        producer.send(topic, b"after", delivery_timeout_ms=30_000).result(30)
    producer.close(30)
    """


def test_a_client_that_was_stopped_goes_on(cluster: KafkaCluster, topic: str) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), cluster.bootstrap_servers, topic],
        stderr=subprocess.PIPE,
        text=True,
    )
    guard = threading.Timer(PATIENCE, program.kill)
    guard.start()
    try:
        while True:
            _, status = os.waitpid(program.pid, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                break
            threading.Event().wait(STOPPED)
            os.kill(program.pid, signal.SIGCONT)
    finally:
        guard.cancel()
        guard.join()
    assert program.stderr is not None
    errors = program.stderr.read()
    program.stderr.close()
    program.returncode = os.waitstatus_to_exitcode(status)
    assert program.returncode == 0, errors
    values = read_log(cluster, topic).values
    assert values.count(b"after") == 2
