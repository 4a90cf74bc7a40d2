"""TLS over loopback, with a server that uses Python's ssl module."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import random
import selectors
import shutil
import socket
import ssl
import struct
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pykaproducer._kernel import TlsStream, limit_next_write
from pykaproducer._net.connection import Connection, Lost
from pykaproducer._net.secure import SecureNetwork
from pykaproducer._net.transport import ConnectionFailed, Endpoint, HungUp
from pykaproducer._util.clock import Clock
from tests.net.helper import Refusing, Settings, connect, wait
from tests.net.tls_server import (
    PASSWORD,
    Files,
    Server,
    echo,
    network,
    receive,
    send_all,
    server_context,
)

pytest.importorskip("trustme")

from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    load_pem_private_key,
    pkcs12,
)

from pykaproducer.testing._certificates import CertificateAuthority

#: Maximum bytes in a record of TLS.
RECORD = 16384


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("tls"), CertificateAuthority("an authority"))


@pytest.fixture(scope="module")
def certificate(files: Files) -> str:
    return files.issued("server", "localhost", "127.0.0.1")


@pytest.fixture(params=[ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=lambda v: v.name)
def version(request: pytest.FixtureRequest) -> ssl.TLSVersion:
    return request.param


@pytest.fixture
def echoing(certificate: str, version: ssl.TLSVersion) -> Iterator[Server]:
    context = server_context(certificate)
    context.maximum_version = version
    with Server(context, echo) as server:
        yield server


# Transfer ---------------------------------------------------------------------------------------


def test_bytes_go_both_ways(echoing: Server, files: Files) -> None:
    with contextlib.closing(connect(network(ssl_cafile=files.ca), echoing.endpoint())) as transport:
        assert transport.send([memoryview(b"to the "), memoryview(b"broker")]) == 13
        assert receive(transport, 13) == b"to the broker"
        assert transport.receive(memoryview(bytearray(10))) == 0


def test_what_openssl_has_already_is_received_without_waiting(
    echoing: Server, files: Files
) -> None:
    with contextlib.closing(connect(network(ssl_cafile=files.ca), echoing.endpoint())) as transport:
        data = random.randbytes(3 * RECORD)
        send_all(transport, data)
        # A record is decrypted whole: the selector cannot see the rest of it.
        assert receive(transport, len(data), room=1000) == data


def test_much_goes_through_a_narrow_socket(certificate: str, files: Files) -> None:
    received = hashlib.sha256()
    sizes = (1, 70_000, 3, RECORD, 0, RECORD + 1, 1_500_000, 12, 13, 300_000, 2)
    buffers = [random.randbytes(size) for size in sizes]

    def slowly(connection: Any) -> None:
        left = 3 * sum(sizes)
        while left and (data := connection.recv(5000)):
            received.update(data)
            left -= len(data)
        connection.sendall(b"done")

    made = network(ssl_cafile=files.ca, send_buffer_bytes=8192)
    with Server(server_context(certificate), slowly, receive_buffer=4096) as server:
        transport = connect(made, server.endpoint())
        for _ in range(3):
            send_all(transport, *buffers)
        assert receive(transport, 4) == b"done"
        transport.close()
    assert received.digest() == hashlib.sha256(b"".join(buffers * 3)).digest()


def test_what_counts_as_taken_is_what_the_broker_can_read(certificate: str, files: Files) -> None:
    """Otherwise a request that the broker has read would be retried as if it had not."""
    full, read = threading.Event(), []

    def late(connection: Any) -> None:
        connection.sendall(b"go on")
        full.wait()
        with contextlib.suppress(ssl.SSLError):  # a truncated record
            while data := connection.recv(65536):
                read.append(len(data))

    made = network(ssl_cafile=files.ca, send_buffer_bytes=8192)
    with Server(server_context(certificate), late, receive_buffer=4096) as server:
        transport = connect(made, server.endpoint())
        receive(transport, 5)  # unread data would cause a reset when the connection is closed
        buffers = [memoryview(random.randbytes(1000)) for _ in range(2000)]
        taken = transport.send(buffers, patient=False)
        assert 0 <= taken < 2_000_000
        transport.close()
        full.set()
    assert sum(read) == taken


@pytest.mark.parametrize(
    ("written", "readable"),
    [(0, 0), (RECORD + 21, 0), (RECORD + 22, RECORD), (2 * RECORD + 43, RECORD), (-1, -1)],
)
def test_a_record_counts_when_it_is_whole(written: int, readable: int) -> None:
    def record(size: int) -> bytes:
        return b"\x17\x03\x03" + struct.pack(">H", size + 17) + bytes(size + 17)

    class Encrypting:
        """Stands for OpenSSL, to have records of known sizes."""

        def write(self, data: bytes) -> None:
            outgoing.write(record(RECORD) * 2 + record(len(data) - 2 * RECORD))

    outgoing = ssl.MemoryBIO()
    plain = bytes(2 * RECORD + 5)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        errors = ssl.SSLError, ssl.SSLWantReadError
        stream = TlsStream(Encrypting(), ssl.MemoryBIO(), outgoing, ours.fileno(), errors)
        limit_next_write(written)
        first = stream.send([plain], 0)
        assert first == (len(plain) if readable < 0 else readable)
        rest = stream.send([plain[first:]], 0)
        assert first + rest == len(plain)


def test_what_came_before_the_end_is_received_before_it(certificate: str, files: Files) -> None:
    def once(connection: Any) -> None:
        connection.recv(100)
        connection.sendall(b"goodbye")
        connection.unwrap()

    with Server(server_context(certificate), once) as server:
        transport = connect(network(ssl_cafile=files.ca), server.endpoint())
        send_all(transport, b"hello")
        assert receive(transport, 7) == b"goodbye"
        with pytest.raises(HungUp, match="the broker closed the connection"):
            receive(transport, 1)
        with pytest.raises(ConnectionFailed):
            transport.send([memoryview(b"more")])
        transport.close()


def test_the_end_of_a_fork_s_child_is_not_the_session_s(certificate: str, files: Files) -> None:
    made = network(ssl_cafile=files.ca)
    with Server(server_context(certificate), echo) as server:
        transport = connect(made, server.endpoint())
        child = os.fork()
        if child == 0:
            made.close_inherited()
            transport.close()
            del transport
            gc.collect()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        send_all(transport, b"still here")
        assert receive(transport, 10) == b"still here"
        transport.close()
    assert not server.errors


# Server authentication --------------------------------------------------------------------------


def refusal(server: Server, host: str = "localhost", **settings: Any) -> str:
    """Return why the connection failed, or was closed soon."""
    with pytest.raises(ConnectionFailed) as caught:  # noqa: PT012 - which of the steps tells it
        transport = connect(network(**settings), server.endpoint(host))
        with contextlib.closing(transport):
            send_all(transport, b"hello")
            receive(transport, 5)
    return str(caught.value)


def test_the_versions_that_are_enabled(
    echoing: Server, version: ssl.TLSVersion, files: Files
) -> None:
    names = {ssl.TLSVersion.TLSv1_2: "TLSv1.2", ssl.TLSVersion.TLSv1_3: "TLSv1.3"}
    used = network(ssl_cafile=files.ca, ssl_enabled_protocols=names[version])
    connect(used, echoing.endpoint()).close()
    if version is ssl.TLSVersion.TLSv1_2:
        text = refusal(echoing, ssl_cafile=files.ca, ssl_enabled_protocols="TLSv1.3")
        assert "no TLS version and cipher that both sides support (ssl_enabled_protocols" in text


def test_an_old_version_is_kept_to(certificate: str, files: Files) -> None:
    versions: list[str | None] = []
    with Server(
        server_context(certificate), lambda sock: versions.append(sock.version())
    ) as server:
        for enabled in ("TLSv1.2", "TLSv1.2,TLSv1.3"):
            used = network(ssl_cafile=files.ca, ssl_enabled_protocols=enabled)
            connect(used, server.endpoint()).close()
    assert versions == ["TLSv1.2", "TLSv1.3"]


@pytest.mark.parametrize("host", ["localhost", "localhost.", "127.0.0.1"])
def test_the_name_is_told_and_checked(certificate: str, files: Files, host: str) -> None:
    told = []
    context = server_context(certificate)
    context.sni_callback = lambda sock, name, context: told.append(name)
    with Server(context, echo) as server:
        connect(network(ssl_cafile=files.ca), server.endpoint(host)).close()
        assert told == [None if host == "127.0.0.1" else "localhost"]


def test_a_certificate_of_another_host(files: Files) -> None:
    with Server(server_context(files.issued("other", "elsewhere.example")), echo) as server:
        text = refusal(server, ssl_cafile=files.ca)
        assert "is not for 'localhost': connect by a name" in text
        assert "is not for '127.0.0.1'" in refusal(server, "127.0.0.1", ssl_cafile=files.ca)
        connect(network(ssl_cafile=files.ca, ssl_check_hostname=False), server.endpoint()).close()


def test_an_expired_certificate(files: Files) -> None:
    with Server(server_context(files.issued("old", "localhost", expired=True)), echo) as server:
        text = refusal(server, ssl_cafile=files.ca, ssl_check_hostname=False)
        assert text == "the broker's certificate has expired"


def test_an_authority_that_nobody_knows(certificate: str, files: Files) -> None:
    stranger = files.put("stranger.pem", CertificateAuthority("a stranger").certificate)
    with Server(server_context(certificate), echo) as server:
        for settings in ({"ssl_cafile": stranger}, {}):
            assert "set ssl_cafile to the CA's certificate" in refusal(server, **settings)
        # The server is notified, too.
        assert "unknown ca" in str(server.errors[0]).lower().replace("_", " ")


def test_a_revoked_certificate(files: Files) -> None:
    made = files.authority.issue("revoked", ["localhost"])
    path = files.put("revoked.pem", made.certificate + made.key)
    crl = files.put("crl.pem", files.authority.revocation_list([made.serial]))
    none = files.put("none.pem", files.authority.revocation_list([]))
    with Server(server_context(path), echo) as server:
        assert "has been revoked" in refusal(server, ssl_cafile=files.ca, ssl_crlfile=crl)
        connect(network(ssl_cafile=files.ca, ssl_crlfile=none), server.endpoint()).close()


def test_a_directory_of_authorities(certificate: str, files: Files) -> None:
    directory = files.directory / "authorities"
    directory.mkdir()
    # OpenSSL looks for the authority under the hash of its name only.
    shutil.copy(files.ca, directory / "00000000.0")
    with Server(server_context(certificate), echo) as server:
        text = refusal(server, ssl_cafile=str(directory))
        assert "an unknown CA" in text


# Client authentication --------------------------------------------------------------------------


@pytest.fixture
def demanding(certificate: str, files: Files, version: ssl.TLSVersion) -> Iterator[Server]:
    context = server_context(certificate, files.ca)
    context.maximum_version = version
    with Server(context, echo) as server:
        yield server


def test_a_client_with_a_certificate_comes_in(demanding: Server, files: Files) -> None:
    issued = files.authority.issue("client", key_password=PASSWORD)
    made = network(
        ssl_cafile=files.ca,
        ssl_certfile=files.put("client-cert.pem", issued.certificate),
        ssl_keyfile=files.put("client-key.pem", issued.key),
        ssl_password=PASSWORD,
    )
    with contextlib.closing(connect(made, demanding.endpoint())) as transport:
        send_all(transport, b"hello")
        assert receive(transport, 5) == b"hello"


def test_a_client_without_a_certificate_is_told_that_it_needs_one(
    demanding: Server, files: Files
) -> None:
    assert "ssl_certfile" in refusal(demanding, ssl_cafile=files.ca)


def test_a_client_with_a_certificate_that_is_no_good(demanding: Server, files: Files) -> None:
    stranger = CertificateAuthority("a stranger").issue("client")
    path = files.put("strange-client.pem", stranger.certificate + stranger.key)
    text = refusal(demanding, ssl_cafile=files.ca, ssl_certfile=path)
    assert (
        "rejected the client certificate (ssl_certfile)" in text or "check the broker's log" in text
    )


def test_a_context_of_the_user_s_own(demanding: Server, files: Files) -> None:
    context = ssl.create_default_context(cafile=files.ca)
    context.load_cert_chain(files.issued("own"))
    with contextlib.closing(
        connect(network(ssl_context=context), demanding.endpoint())
    ) as transport:
        send_all(transport, b"hello")
        assert receive(transport, 5) == b"hello"


# Renewed files ----------------------------------------------------------------------------------


def renew(directory: Path, how: str, **contents: str | bytes) -> None:
    """Replace files, each at once, or all at once as Kubernetes does it in a mounted volume."""
    fresh = Path(tempfile.mkdtemp(prefix="..", dir=directory))
    for name, content in contents.items():
        (fresh / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        if how == "one by one":
            (fresh / name).replace(directory / name)
        elif not (directory / name).is_symlink():
            (directory / name).symlink_to(Path("..data", name))
    if how == "Kubernetes":
        (directory / "..data_tmp").symlink_to(fresh.name)
        (directory / "..data_tmp").replace(directory / "..data")


@pytest.fixture
def asking(certificate: str, files: Files, version: ssl.TLSVersion) -> Iterator[Server]:
    """A server that sends to each client the name in its certificate."""
    context = server_context(certificate, files.ca)
    context.maximum_version = version

    def name(connection: Any) -> None:
        subject = dict(pair for (pair,) in connection.getpeercert()["subject"])
        connection.sendall(subject["commonName"].encode())

    with Server(context, name) as server:
        yield server


def answer(made: SecureNetwork, server: Server, size: int) -> str:
    with contextlib.closing(connect(made, server.endpoint())) as transport:
        return receive(transport, size).decode()


def store(key: str | None, *certificates: str) -> bytes:
    """Return a key store, or without a key a trust store, of the type PKCS12."""
    first, *others = (x509.load_pem_x509_certificate(each.encode()) for each in certificates)
    return pkcs12.serialize_key_and_certificates(
        b"me",
        None if key is None else load_pem_private_key(key.encode(), None),  # type: ignore[arg-type]
        None if key is None else first,
        others if key is not None else [first],
        BestAvailableEncryption(PASSWORD.encode()),
    )


@pytest.mark.parametrize("how", ["one by one", "Kubernetes"])
@pytest.mark.parametrize("kind", ["certfile", "certfile and keyfile", "keystore"])
def test_a_renewed_client_certificate(
    asking: Server, files: Files, tmp_path: Path, how: str, kind: str
) -> None:
    def put(name: str) -> None:
        made = files.authority.issue(name)
        if kind == "keystore":
            renew(tmp_path, how, me=store(made.key, made.certificate))
        else:
            renew(tmp_path, how, me=made.certificate + made.key, key=made.key)

    put("first")
    me = str(tmp_path / "me")
    settings = {
        "certfile": {"ssl_certfile": me},
        "certfile and keyfile": {"ssl_certfile": me, "ssl_keyfile": str(tmp_path / "key")},
        "keystore": {"ssl_keystore_location": me, "ssl_keystore_password": PASSWORD},
    }
    made = network(ssl_cafile=files.ca, **settings[kind])
    assert [answer(made, asking, 5) for _ in range(2)] == ["first", "first"]
    put("other")
    assert answer(made, asking, 5) == "other"


@pytest.mark.parametrize("how", ["one by one", "Kubernetes"])
@pytest.mark.parametrize("setting", ["ssl_cafile", "ssl_truststore_location", "ssl_crlfile"])
def test_renewed_authorities_and_revocations(
    files: Files, tmp_path: Path, how: str, setting: str
) -> None:
    mine, stranger = files.authority, CertificateAuthority("a stranger")
    issued = mine.issue("server", ["localhost"])
    contents: dict[str, list[str | bytes]] = {
        "ssl_cafile": [stranger.certificate, stranger.certificate + mine.certificate],
        "ssl_truststore_location": [store(None, each.certificate) for each in (stranger, mine)],
        "ssl_crlfile": [mine.revocation_list([issued.serial]), mine.revocation_list([])],
    }
    first, second = contents[setting]
    renew(tmp_path, how, file=first)
    settings = {"ssl_cafile": files.ca, setting: str(tmp_path / "file")}
    if setting == "ssl_truststore_location":
        settings = {setting: settings[setting], "ssl_truststore_password": PASSWORD}
    with Server(server_context(files.put("it.pem", issued.certificate + issued.key)), echo) as it:
        made = network(**settings)
        with pytest.raises(ConnectionFailed, match=r"unknown CA|revoked"):
            connect(made, it.endpoint())
        renew(tmp_path, how, file=second)
        connect(made, it.endpoint()).close()


def test_renewed_files_that_cannot_be_used(
    asking: Server, files: Files, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, other = (files.authority.issue(name) for name in ("first", "other"))
    me, key = tmp_path / "me", tmp_path / "key"
    renew(tmp_path, "one by one", me=first.certificate, key=first.key)
    made = network(ssl_cafile=files.ca, ssl_certfile=str(me), ssl_keyfile=str(key))
    assert answer(made, asking, 5) == "first"
    # A file is missing for a moment, which is no change.
    me.unlink()
    assert answer(made, asking, 5) == "first"
    assert not caplog.records
    # The certificate is half written, then complete without its key: one warning for each.
    for content in (other.certificate[:-40], other.certificate):
        me.write_text(content)
        assert [answer(made, asking, 5) for _ in range(2)] == ["first", "first"]
    half, pair = (record.getMessage() for record in caplog.records)
    assert half.startswith(f"setting ssl_certfile: {str(me)!r} is malformed")
    assert pair.startswith(f"setting ssl_keyfile: the key in {str(key)!r} does not belong to")
    assert pair.endswith("; until then, connections use the previous contents")
    key.write_text(other.key + "\n")
    assert answer(made, asking, 5) == "other"


# Servers without TLS ----------------------------------------------------------------------------


def test_a_server_that_says_something_else(files: Files) -> None:
    def http(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with Server(None, http) as server:
        text = refusal(server, ssl_cafile=files.ca)
        assert text == "it does not use TLS; check security_protocol, which is SSL"


def test_a_server_that_hangs_up(files: Files) -> None:
    with Server(None, lambda connection: connection.recv(1000)) as server:
        text = refusal(server, ssl_cafile=files.ca)
        assert "it does not use TLS; check security_protocol" in text


def test_a_server_that_says_nothing(files: Files) -> None:
    done = threading.Event()
    with Server(None, lambda _: done.wait()) as server:
        connection = Connection(
            ("127.0.0.1", server.port),
            config=Settings(request_timeout_ms=200),
            clock=Clock(),
            network=network(ssl_cafile=files.ca),
        )
        connection.open()
        (lost,) = connection.poll(None)
        done.set()
        connection.close()
    assert isinstance(lost, Lost)
    assert (
        "the TLS handshake (does this listener use TLS? security_protocol is SSL) took too"
        in lost.reason
    )


def test_the_handshake_s_failure_is_told_and_not_that_nobody_listens_elsewhere(
    files: Files,
) -> None:
    with (
        Server(server_context(files.issued("older", "localhost", expired=True)), echo) as server,
        socket.socket() as bound,
    ):
        bound.bind(("127.0.0.1", 0))
        made = network(ssl_cafile=files.ca)
        there = server.endpoint()
        absent = there._replace(address=bound.getsockname())
        made.resolve = lambda host, port: [there, absent]  # type: ignore[method-assign]
        connection = Connection(("localhost", 1), config=Settings(), clock=Clock(), network=made)
        connection.open()
        (lost,) = connection.poll(None)
        connection.close()
    assert isinstance(lost, Lost)
    assert lost.reason == "the broker's certificate has expired"


def test_nobody_listens(files: Files) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        made = network(ssl_cafile=files.ca)
        endpoint = made.resolve("127.0.0.1", bound.getsockname()[1])[0]
        assert endpoint.host == "127.0.0.1"
        with pytest.raises(ConnectionFailed, match="nothing listens there"):
            connect(made, endpoint)


def test_a_name_that_is_none(certificate: str, files: Files) -> None:
    with Server(server_context(certificate), echo) as server:
        assert "TLS is impossible with the host name '.x'" in refusal(
            server, ".x", ssl_cafile=files.ca
        )


def test_a_write_to_a_broker_that_has_gone_is_an_error(certificate: str, files: Files) -> None:
    with Server(server_context(certificate), lambda connection: connection.recv(5)) as server:
        transport = connect(network(ssl_cafile=files.ca), server.endpoint())
        send_all(transport, b"hello")
        wait(transport, selectors.EVENT_READ)
        with pytest.raises(ConnectionFailed):
            send_all(transport, *[bytes(100_000)] * 1000)
        transport.close()


# Events between two steps -----------------------------------------------------------------------


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
    files: Files, tmp_path: Path, setting: str
) -> None:
    """It existed when the setting was validated, and when its content was checked."""
    content = Path(files.issued(f"for-{setting}", "localhost")).read_bytes()
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


# Without memory ---------------------------------------------------------------------------------


class Buffer:
    """One of OpenSSL's buffers: the next call of *method* fails."""

    def __init__(self, real: Any, method: str, error: Exception) -> None:
        self._real = real
        setattr(self, method, Refusing(getattr(real, method), times=1, error=error))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def test_an_answer_does_not_write_what_there_was_no_memory_for(files: Files) -> None:
    """The connection is lost, and the request is written again on the next one."""
    read = []

    def serve(connection: Any) -> None:
        connection.sendall(b"answer")
        with contextlib.suppress(ssl.SSLError):
            while data := connection.recv(65536):
                read.append(data)

    with Server(server_context(files.issued("server", "localhost")), serve) as server:
        transport: Any = connect(network(ssl_cafile=files.ca), server.endpoint())
        stream = transport.stream
        stream.outgoing = Buffer(stream.outgoing, "read", MemoryError())
        with pytest.raises(MemoryError):
            transport.send([memoryview(b"request")])
        assert receive(transport, 6) == b"answer"
        transport.close()
    assert read == []


def test_openssl_has_no_memory_for_received_bytes(files: Files) -> None:
    def serve(connection: Any) -> None:
        connection.sendall(b"answer")
        connection.recv(1)

    with Server(server_context(files.issued("other", "localhost")), serve) as server:
        transport: Any = connect(network(ssl_cafile=files.ca), server.endpoint())
        error = ssl.SSLError(1, "malloc failure")
        error.reason = "MALLOC_FAILURE"
        stream = transport.stream
        stream.incoming = Buffer(stream.incoming, "write", error)
        with (
            contextlib.closing(transport),
            pytest.raises(ConnectionFailed, match="TLS failed: malloc failure"),
        ):
            receive(transport, 6)


def test_a_transport_that_cannot_be_registered_is_closed(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        def add(self, each: object) -> None:
            raise MemoryError

    made = network(ssl_cafile=files.ca)
    opened = []
    real = made._open

    def open_(endpoint: Endpoint) -> socket.socket:
        opened.append(real(endpoint))
        return opened[0]

    monkeypatch.setattr(made, "_open", open_)
    monkeypatch.setattr(made, "_tls", Full())
    with Server(None, lambda connection: None) as server, pytest.raises(MemoryError):
        made.connect(server.endpoint())
    assert opened[0].fileno() < 0
