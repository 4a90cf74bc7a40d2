"""``cluster start``: the ports that it takes and cannot have, and why a broker has ended."""

from __future__ import annotations

import ctypes
import os
import pathlib
import random
import signal
import socket
import subprocess

import pytest

from pykaproducer.cli.cluster import _reasons
from pykaproducer.testing import KafkaCluster
from tests.cli.helper import PATIENCE, command, run

_UNPRIVILEGED = pathlib.Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")
_PR_CAPBSET_DROP, _CAP_NET_BIND_SERVICE = 24, 10


def two_free_ports() -> int:
    """Return the first of two neighbouring ports that are free now, and not given to clients."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as first, socket.socket() as second:
            try:
                first.bind(("127.0.0.1", port))
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


@pytest.mark.full
@pytest.mark.usefixtures("cluster")  # which skips the test where there is no Kafka
def test_several_brokers_from_a_port_on() -> None:
    port = two_free_ports()
    servers = f"127.0.0.1:{port},127.0.0.1:{port + 1}"
    with subprocess.Popen(
        command("cluster", "start", "--brokers", "2", "--port", str(port)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline().strip() == servers
            create = ("topics", "create", "events", "-b", f"127.0.0.1:{port}")
            done = run(*create, "--partitions", "6", "--replication-factor", "2")
            assert done.stdout == b"created events: 6 partitions, 2 replicas\n", done.stderr
            again = run(*create, "--partitions", "12", "--if-not-exists")
            assert again.returncode == 0
            assert b"nothing was changed (events: 6 partitions, 2 replicas)" in again.stderr
        finally:
            process.send_signal(signal.SIGINT)
            output = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 0
    assert f"try: pykaproducer produce -t events -b {servers} FILE" in output


def test_a_port_that_is_taken(cluster: KafkaCluster) -> None:
    port = cluster.brokers[0].port
    done = run("cluster", "start", "--port", str(port))
    assert done.returncode == 1
    assert done.stdout == b""
    assert done.stderr.decode().splitlines()[-1] == (
        f"pykaproducer: port {port} on 127.0.0.1: Address already in use; stop the program that "
        f"uses it, or choose another"
    )


@pytest.mark.usefixtures("cluster")
def test_a_port_that_is_reserved_for_root() -> None:
    if int(_UNPRIVILEGED.read_text()) <= 1:
        pytest.skip("every port is free for all users here: net.ipv4.ip_unprivileged_port_start")
    libc = ctypes.CDLL(None)

    def without_the_privilege() -> None:
        if os.geteuid() == 0:
            libc.prctl(_PR_CAPBSET_DROP, _CAP_NET_BIND_SERVICE, 0, 0, 0)

    done = subprocess.run(
        command("cluster", "start", "--port", "1"),
        preexec_fn=without_the_privilege,
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.decode().splitlines()[-1] == (
        "pykaproducer: port 1 on 127.0.0.1: Permission denied; choose one from 1024 on, as the "
        "lower ones are reserved for root"
    )


def test_the_reason_for_the_end_of_a_broker_is_found_in_its_log() -> None:
    """The log ends with a part of a stack."""
    cause = "12:00:00.000 [main] ERROR kafka.Kafka - Error while writing"
    stack = ["java.io.IOException", "\tat a.b(C.java:1)", "Caused by: No space left on device"]
    log = "\n".join(["12:00:00.000 [main] INFO fine", cause, *stack, *["\tat d.e(F.java:2)"] * 9])
    assert _reasons(log).splitlines() == [cause, "Caused by: No space left on device"]
    assert _reasons("one\ntwo") == "one\ntwo"
