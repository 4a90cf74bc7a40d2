"""Connections as ``security_protocol`` wants them: with TLS, with SASL, with both."""

from __future__ import annotations

import contextlib
import secrets
import ssl
import threading
import weakref
from collections.abc import Callable
from typing import Any, Final, Protocol

from pykaproducer._machines.authentication import Authentication, Credentials
from pykaproducer._net.tls import TlsTransport
from pykaproducer._net.tls_errors import Peer
from pykaproducer._net.transport import (
    ConnectionFailed,
    Endpoint,
    Network,
    SocketSettings,
    Transport,
)
from pykaproducer._tls_files import TlsSettings, tls_context
from pykaproducer._wire.mechanisms import Borrowed, Mechanism, OAuthBearer, Plain, Scram
from pykaproducer.errors import ConfigurationError

#: What OpenSSL was at work on when this process was forked off. Never freed:
#:
#: 1. a thread of ours is inside OpenSSL; 2. another thread forks; 3. in the child the object stands
#:    half changed, and to free it may crash.
_forsaken: Final[list[object]] = []


class SecuritySettings(SocketSettings, TlsSettings, Protocol):
    """The settings that concern security, as in the configuration."""

    @property
    def client_id(self) -> str | None: ...
    @property
    def security_protocol(self) -> str: ...
    @property
    def sasl_mechanism(self) -> str | None: ...
    @property
    def sasl_plain_username(self) -> str | None: ...
    @property
    def sasl_plain_password(self) -> str | None: ...
    @property
    def sasl_oauth_token_provider(self) -> Any: ...
    @property
    def sasl_kerberos_name(self) -> Any: ...
    @property
    def sasl_kerberos_service_name(self) -> str: ...
    @property
    def sasl_kerberos_domain_name(self) -> str | None: ...


def network_for(settings: SecuritySettings) -> Network:
    """Where the connections of a producer with these settings come from."""
    if settings.security_protocol == "PLAINTEXT":
        return Network(settings)
    return SecureNetwork(settings)


class SecureNetwork(Network):
    """TCP, with TLS over it, with SASL over that.

    Each has a TLS context of its own. A forked child gets a new network, and so does not share the
    parent's: its locks might be held by a thread that the child has not got. (With ``ssl_context``
    it is the user's, and shared.)
    """

    def __init__(self, settings: SecuritySettings) -> None:
        super().__init__(settings)
        self._security = settings
        self.protocol = settings.security_protocol
        self._making = threading.Lock()
        self._context: ssl.SSLContext | None = None
        self._tls: weakref.WeakSet[ssl.SSLObject] = weakref.WeakSet()

    def resolve(self, host: str, port: int) -> list[Endpoint]:
        """The addresses of *host*, each with the name that its certificate has to be for."""
        return [each._replace(host=host) for each in super().resolve(host, port)]

    def connect(self, endpoint: Endpoint) -> Transport:
        """Begin to connect."""
        settings = self._security
        if not self.protocol.endswith("SSL"):
            return super().connect(endpoint)
        context = self._tls_context()
        has_certificate = None if settings.ssl_context else settings.ssl_certfile is not None
        peer = Peer(endpoint.host, self.protocol, has_certificate)
        with contextlib.ExitStack() as undo:
            sock = undo.enter_context(self._open(endpoint))
            transport = TlsTransport(sock, context, peer)
            undo.pop_all()  # it is the transport's to close
        self._tls.add(transport.tls)
        return transport

    def _tls_context(self) -> ssl.SSLContext:
        """Made by the first that connects: to load the system's authorities takes a while."""
        with self._making:
            if self._context is not None:
                return self._context
            try:
                context = tls_context(self._security)
            except ConfigurationError as error:  # a file has changed since it was checked
                raise ConnectionFailed(str(error)) from error
            # OpenSSL does not report that it could not open the system's authorities, for example
            # because the process has too many open files: without any, load them again next time.
            if self._security.ssl_context is not None or context.cert_store_stats()["x509_ca"]:
                self._context = context
            return context

    def forsake(self) -> None:
        """In the child of a fork: see ``Network.forsake``. Nothing is said to the brokers."""
        super().forsake()
        _forsaken.extend([self._context, *self._tls])

    def sign_in(self, host: str) -> Callable[[], Authentication] | None:
        """What makes the authentication of a connection to *host*; None: there is none.

        What it asks of a token provider, or of Kerberos, is asked in the connection's own thread.
        That may take as long as it likes: nobody waits for that thread, or for its stage's lock,
        which others only try to take.
        """
        settings = self._security
        if not self.protocol.startswith("SASL"):
            return None
        assert settings.sasl_mechanism is not None
        credentials = Credentials(
            settings.sasl_mechanism,
            lambda: _mechanism(settings, host),
            self.protocol,
            settings.sasl_plain_username,
        )
        return lambda: Authentication(credentials, settings.client_id)


def _mechanism(settings: SecuritySettings, host: str) -> Mechanism:
    """One exchange with the broker at *host*."""
    name = settings.sasl_mechanism
    user, password = settings.sasl_plain_username, settings.sasl_plain_password
    match name:
        case "PLAIN":
            assert user is not None
            assert password is not None
            return Plain(user, password)
        case "SCRAM-SHA-256" | "SCRAM-SHA-512":
            assert user is not None
            assert password is not None
            return Scram(name, user, password, secrets.token_urlsafe(24))
        case "OAUTHBEARER":
            return OAuthBearer(settings.sasl_oauth_token_provider)
        case _:
            assert name is not None
            return Borrowed(name, {"host": host, **_kafka_python_settings(settings)})


def _kafka_python_settings(settings: SecuritySettings) -> dict[str, Any]:
    return {
        "security_protocol": settings.security_protocol,
        "sasl_kerberos_name": settings.sasl_kerberos_name,
        "sasl_kerberos_service_name": settings.sasl_kerberos_service_name,
        "sasl_kerberos_domain_name": settings.sasl_kerberos_domain_name,
    }
