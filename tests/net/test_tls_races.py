"""TLS: events between two steps."""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import ssl
import threading
from typing import Any

import pytest

from pykaproducer._net.transport import ConnectionFailed
from tests.net.helper import connect
from tests.net.tls_server import Files, Server, network, receive, server_context

pytest.importorskip("trustme")

from pykaproducer.testing._certificates import CertificateAuthority


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("tls"), CertificateAuthority("an authority"))


def test_an_answer_does_not_write_what_nobody_is_told_of(files: Files) -> None:
    """If the connection were lost after the answer, a written request would seem unwritten."""
    full, read = threading.Event(), []

    def late(connection: Any) -> None:
        full.wait()
        connection.settimeout(0.5)
        with contextlib.suppress(TimeoutError):  # everything that has been sent
            while data := connection.recv(65536):
                read.append(len(data))
        connection.settimeout(None)
        connection.sendall(b"answer")
        with contextlib.suppress(ssl.SSLError):  # a truncated record
            while data := connection.recv(65536):
                read.append(len(data))

    made = network(ssl_cafile=files.ca, send_buffer_bytes=8192)
    context = server_context(files.issued("server", "localhost"))
    with Server(context, late, receive_buffer=4096) as server:
        transport = connect(made, server.endpoint())
        # One piece of several records, of which the socket accepts only the first ones.
        taken = transport.send([memoryview(random.randbytes(400_000))], patient=False)
        full.set()
        assert taken < 400_000
        receive(transport, 6)
        transport.close()
    assert sum(read) == taken


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
@pytest.mark.parametrize("setting", ["ssl_cafile", "ssl_certfile"])
def test_a_file_that_is_taken_away_while_it_is_loaded(
    files: Files, tmp_path: pathlib.Path, setting: str
) -> None:
    """It existed when the setting was validated, and when its content was checked."""
    content = pathlib.Path(files.issued(f"for-{setting}", "localhost")).read_bytes()
    path = tmp_path / "file.pem"
    path.write_bytes(content)
    made = network(**{setting: str(path)})
    path.unlink()
    os.mkfifo(path)

    def replace() -> None:
        for last in [False, True] if setting == "ssl_certfile" else [True]:
            pipe = os.open(path, os.O_WRONLY)
            os.write(pipe, content)
            path.unlink()
            if not last:
                os.mkfifo(path)
            os.close(pipe)

    replacing = threading.Thread(target=replace)
    replacing.start()
    with (
        Server(None, lambda _: None) as server,
        pytest.raises(ConnectionFailed, match=f"{setting}.*cannot be read: No such file"),
    ):
        made.connect(server.endpoint())
    replacing.join()
