"""The stage that fetches tokens, at the end of a producer and in a forked process."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

from pykaproducer import Producer
from pykaproducer.errors import AbortedError
from tests._support import programs
from tests._support.logs import told_by_log

PATIENCE = 60.0


@pytest.mark.scripted
def test_a_thread_that_cannot_be_ended_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's resolver cannot be interrupted."""
    asked, go_on = threading.Event(), threading.Event()
    look_up = socket.getaddrinfo

    def slow(host: Any, *more: Any, **options: Any) -> Any:
        if host == "login.invalid":
            asked.set()
            go_on.wait(PATIENCE)
        return look_up(host, *more, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    producer = Producer(
        bootstrap_servers="127.0.0.1:1",
        security_protocol="SASL_SSL",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauthbearer_token_endpoint_url="https://login.invalid/token",
        sasl_oauthbearer_client_id="me",
        sasl_oauthbearer_client_secret="hunter2",
    )
    delivery = producer.send("t", b"x")
    assert asked.wait(PATIENCE)
    with told_by_log("still running after") as told:
        producer.close(0)
    go_on.set()
    assert told.is_set()
    assert isinstance(delivery.exception(PATIENCE), AbortedError)


@pytest.mark.scripted
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_forked_process_has_no_socket_of_a_request(scheme: str) -> None:
    """With https, it is forked during the TLS handshake."""
    script = f"""
        import os, socket
        from pykaproducer import Producer
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        producer = Producer(
            bootstrap_servers="127.0.0.1:1",
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauthbearer_token_endpoint_url=f"{scheme}://127.0.0.1:{{port}}/token",
            sasl_oauthbearer_client_id="me",
            sasl_oauthbearer_client_secret="hunter2",
        )
        producer.send("t", b"x")
        peer, address = listener.accept()
        assert peer.recv(1)

        def is_open():
            for number in range(3, 1000):
                try:
                    with socket.socket(fileno=os.dup(number)) as each:
                        if each.getsockname() == address:
                            return True
                except OSError:
                    pass
            return False

        assert is_open()
        child = os.fork()
        if not child:
            os._exit(is_open())
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        producer.close(0)
    """
    assert programs.run(script) == "0\n"
