"""Connections for each ``security_protocol``: with TLS, with SASL, with both."""

from __future__ import annotations

import contextlib
import secrets
import ssl
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from pykaproducer._config.key_store import AUTHORITIES, CERTIFICATES, given_of
from pykaproducer._config.oauth_settings import OAuthSettings
from pykaproducer._config.tls_context import FILES, TlsSettings, tls_context
from pykaproducer._kernel import TlsStream
from pykaproducer._machines.authentication import Authentication, Credentials
from pykaproducer._net.renewed_context import RenewedContext
from pykaproducer._net.tls import TlsTransport
from pykaproducer._net.tls_errors import Peer
from pykaproducer._net.transport import (
    Endpoint,
    HandshakeFailed,
    Network,
    SocketSettings,
    Transport,
)
from pykaproducer._wire.kerberos import Kerberos, KerberosIdentity
from pykaproducer._wire.mechanism import Mechanism
from pykaproducer._wire.mechanisms import OAuthBearer, Plain, Scram
from pykaproducer._wire.msk_iam import MskIam
from pykaproducer.errors import ConfigurationError

if TYPE_CHECKING:
    from pykaproducer._net.tokens import Tokens

#: OpenSSL objects that were inherited by a fork. They are never freed:
#:
#: 1. a thread of this package is inside OpenSSL;
#: 2. another thread forks;
#: 3. in the child the object is in an intermediate state, and freeing it may crash.
_inherited: Final[list[object]] = []


class SecureNetworkSettings(SocketSettings, TlsSettings, Protocol):
    """The configuration settings for security."""

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
    @property
    def sasl_kerberos_principal(self) -> str | None: ...
    @property
    def sasl_kerberos_keytab(self) -> str | None: ...


class SecureNetwork(Network):
    """TCP connections with TLS, SASL or both.

    Each network has its own TLS context. A forked child gets a new network and does not share the
    parent's context, whose locks might be held by a thread that does not exist in the child. (The
    user's ``ssl_context`` is shared.)
    """

    def __init__(self, settings: SecureNetworkSettings) -> None:
        super().__init__(settings)
        self._security = settings
        self.protocol = settings.security_protocol
        # Created on first use: loading the system's CAs takes a while.
        self._context = RenewedContext(
            lambda: tls_context(settings), (getattr(settings, name) for name in FILES)
        )
        self._tls: weakref.WeakSet[ssl.SSLObject] = weakref.WeakSet()
        self._streams: weakref.WeakSet[TlsStream] = weakref.WeakSet()
        #: The tokens of a producer that gets them by itself.
        self.tokens = _tokens(settings)
        # Tickets requested with a key table are shared by the connections, and by nothing else.
        self._ticket_cache = f"MEMORY:pykaproducer-{secrets.token_hex(8)}"

    def resolve(self, host: str, port: int) -> list[Endpoint]:
        """Return the addresses of *host*, each with the name required in the certificate."""
        return [each._replace(host=host) for each in super().resolve(host, port)]

    def connect(self, endpoint: Endpoint) -> Transport:
        """Begin to connect."""
        settings = self._security
        if not self.protocol.endswith("SSL"):
            return super().connect(endpoint)
        try:
            context = self._context.current()
        except ConfigurationError as error:  # a file has changed since it was checked
            raise HandshakeFailed(str(error)) from error
        certificate = given_of(settings, CERTIFICATES)
        peer = Peer(
            endpoint.host,
            self.protocol,
            None if settings.ssl_context is not None else certificate is not None,
            certificate or CERTIFICATES[0],
            given_of(settings, AUTHORITIES) or AUTHORITIES[0],
        )
        with contextlib.ExitStack() as undo:
            sock = undo.enter_context(self._open(endpoint))
            transport = TlsTransport(sock, context, peer, self._plain(sock, endpoint))
            self._tls.add(transport.tls)
            self._streams.add(transport.stream)
            undo.pop_all()  # the transport closes it from now on
        return transport

    def close_inherited(self) -> None:
        """Close the parent's sockets in a forked child. Sends nothing to the brokers.

        See :meth:`Network.close_inherited`.
        """
        for stream in list(self._streams):
            stream.close()  # a signal handler may have forked in the middle of a call of OpenSSL
        super().close_inherited()
        _inherited.extend([self._context.context, *self._tls])
        if self.tokens is not None:
            _inherited.extend(self.tokens.inherited())

    def authenticator(self, host: str) -> Callable[[], Authentication] | None:
        """Return a factory for the authentication of a connection to *host*, None without SASL.

        A token provider, or Kerberos, is called in the connection's own thread and may block for
        any time. No thread waits for that thread, or for the lock of its stage, which others only
        try to acquire. Tokens that the producer gets by itself are there already.
        """
        settings = self._security
        if not self.protocol.startswith("SASL"):
            return None
        assert settings.sasl_mechanism is not None
        credentials = Credentials(
            settings.sasl_mechanism,
            lambda: self._mechanism(host),
            self.protocol,
            settings.sasl_plain_username or settings.sasl_kerberos_principal,
        )
        return lambda: Authentication(credentials, settings.client_id)

    def _mechanism(self, host: str) -> Mechanism:
        """Return a new exchange with the broker at *host*."""
        if self.tokens is not None:
            return self.tokens.mechanism()
        return _mechanism(self._security, host, self._ticket_cache)


def _tokens(settings: SecureNetworkSettings) -> Tokens | None:
    if settings.sasl_mechanism != "OAUTHBEARER" or not isinstance(settings, OAuthSettings):
        return None
    if not settings.fetches_tokens:
        return None
    # Not imported with the package, because few programs need an HTTP client.
    from pykaproducer._net.tokens import Tokens

    return Tokens(settings)


def _mechanism(settings: SecureNetworkSettings, host: str, cache: str) -> Mechanism:
    """Return a new exchange with the broker at *host*; *cache* is for tickets of Kerberos."""
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
        case "GSSAPI":
            return Kerberos(_identity(settings, host, cache))
        case "AWS_MSK_IAM":
            return MskIam(host)
    raise AssertionError(f"no mechanism {name!r}")


def _identity(settings: SecureNetworkSettings, host: str, cache: str) -> KerberosIdentity:
    target = settings.sasl_kerberos_name
    if target is None:
        domain = settings.sasl_kerberos_domain_name or host
        target = f"{settings.sasl_kerberos_service_name}@{domain}"
    principal, keytab = settings.sasl_kerberos_principal, settings.sasl_kerberos_keytab
    return KerberosIdentity(target, principal, keytab, cache)
