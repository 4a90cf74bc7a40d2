"""The secured listeners of a test cluster: their properties, files and credentials.

Each :class:`Security` adds a listener to every broker, besides the plain one that brokers and the
cluster's own methods use. Its settings include the listener's name, so that listeners with
different certificates and mechanisms can coexist in a broker.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pykaproducer.testing import _server
from pykaproducer.testing._certificates import CertificateAuthority
from pykaproducer.testing._storage import ScramCredential
from pykaproducer.testing.security import Security, UnsecuredTokens

#: The user of plain listeners, and of TLS listeners that do not require a certificate.
_ANONYMOUS = "ANONYMOUS"
#: The minimum that Kafka accepts, because tests authenticate often.
_SCRAM_ITERATIONS = 4096
_SCRAM_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}

_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "OAUTHBEARER": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
    "GSSAPI": "com.sun.security.auth.module.Krb5LoginModule",
}
_UNSECURED_TOKENS = (
    "org.apache.kafka.common.security.oauthbearer.internals.unsecured."
    "OAuthBearerUnsecuredValidatorCallbackHandler"
)
_SIGNED_TOKENS = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


class SecuredListeners:
    """All secured listeners of a cluster."""

    def __init__(self, listeners: Sequence[Security], directory: Path) -> None:
        self.listeners = list(listeners)
        self.authorizes = any(listener.authorize for listener in listeners)
        #: Credentials that the brokers have from their first start.
        self.credentials = _scram_credentials(listeners)
        self._super_users = _super_users(listeners)
        self._directory = directory
        if any(listener.tls for listener in listeners):
            directory.mkdir()
            self._authority = CertificateAuthority("pykaproducer test cluster")
            self.ca_file = self._write("ca.pem", self._authority.certificate)
            for number, listener in enumerate(listeners):
                if listener.tls:
                    self._make_files(number, listener)

    # Files

    def _make_files(self, number: int, listener: Security) -> None:
        other = listener.certificate == "other-host"
        hosts = ["other.example"] if other else ["localhost", _server.HOST]
        expired = listener.certificate == "expired"
        server = self._authority.issue("broker", hosts, expired=expired)
        self._write(f"server-{number}.pem", server.key + server.certificate)
        revoked = self._authority.revocation_list([server.serial])
        self._write(f"revoked-{number}.pem", revoked)
        if listener.asks_certificate:
            for user in listener.users:
                client = self._authority.issue(user, key_password=listener.key_password)
                self._write(f"client-{number}-{user}.pem", client.certificate)
                self._write(f"client-{number}-{user}.key", client.key)

    def _write(self, name: str, text: str) -> Path:
        path = self._directory / name
        path.touch(mode=0o600)
        path.write_text(text)
        return path

    # The brokers

    def properties(self, own: _server.Ports, ports: Sequence[int]) -> dict[str, str]:
        """Return the configuration of a broker whose secured listeners are at *ports*."""
        host = _server.HOST
        names = [f"SECURED{number}" for number in range(len(self.listeners))]
        placed = [f"{name}://{host}:{port}" for name, port in zip(names, ports, strict=True)]
        protocols = [
            f"{name}:{listener.protocol}"
            for name, listener in zip(names, self.listeners, strict=True)
        ]
        plain = f"CLIENT://{host}:{own.client}"
        out = {
            "listeners": ",".join((plain, *placed, f"CONTROLLER://{host}:{own.controller}")),
            "advertised.listeners": ",".join((plain, *placed)),
            "listener.security.protocol.map": ",".join(
                ("CLIENT:PLAINTEXT", *protocols, "CONTROLLER:PLAINTEXT")
            ),
        }
        if self.authorizes:
            out["authorizer.class.name"] = _AUTHORIZER
            out["super.users"] = ";".join(f"User:{name}" for name in self._super_users)
        for number, listener in enumerate(self.listeners):
            for name, value in self._of_listener(number, listener).items():
                out[f"listener.name.secured{number}.{name}"] = value
        return out

    def _of_listener(self, number: int, listener: Security) -> dict[str, str]:
        out: dict[str, str] = {}
        if listener.tls:
            out |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(self._directory / f"server-{number}.pem"),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(self.ca_file),
                "ssl.client.auth": listener.client_auth,
                # Maps the name (CN) in a certificate's subject to the user name.
                "ssl.principal.mapping.rules": "RULE:^CN=([^,]*).*$/$1/,DEFAULT",
            }
        if listener.mechanism is not None:
            out["sasl.enabled.mechanisms"] = listener.mechanism
            mechanism = listener.mechanism.lower()
            out[f"{mechanism}.sasl.jaas.config"] = _jaas(listener)
            if listener.mechanism == "OAUTHBEARER":
                handler = f"{mechanism}.sasl.server.callback.handler.class"
                out[handler] = _UNSECURED_TOKENS
                if listener.token_server is not None:
                    out[handler] = _SIGNED_TOKENS
                    out["sasl.oauthbearer.jwks.endpoint.url"] = listener.token_server.jwks_url
                    out["sasl.oauthbearer.expected.audience"] = listener.token_server.audience
                    out["sasl.oauthbearer.expected.issuer"] = listener.token_server.issuer
            if listener.kerberos is not None:
                out["sasl.kerberos.service.name"] = listener.kerberos.principal.partition("/")[0]
            if listener.reauth_ms is not None:
                out[f"{mechanism}.connections.max.reauth.ms"] = str(listener.reauth_ms)
        return out

    def java_options(self) -> list[str]:
        """Return the options of Java for a broker with these listeners."""
        servers = [each.token_server for each in self.listeners if each.token_server is not None]
        services = [each.kerberos for each in self.listeners if each.kerberos is not None]
        # A process has one configuration of Kerberos.
        options = [f"-Djava.security.krb5.conf={service.krb5_conf}" for service in services[:1]]
        if servers:
            # Brokers contact no other identity provider.
            urls = ",".join(dict.fromkeys(server.jwks_url for server in servers))
            options.append(f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={urls}")
        return options

    # The clients

    def settings(self, number: int, user: str | None) -> dict[str, Any]:
        """Return the settings of a client of listener *number*, without the addresses."""
        if not 0 <= number < len(self.listeners):
            last = len(self.listeners) - 1
            raise ValueError(f"there is no listener {number}; the cluster has 0 to {last}")
        listener = self.listeners[number]
        user = next(iter(listener.users)) if user is None else user
        if user not in listener.users:
            known = ", ".join(listener.users)
            raise ValueError(f"there is no user {user!r} on listener {number}; it has {known}")
        out: dict[str, Any] = {"security_protocol": listener.protocol}
        if listener.tls:
            out["ssl_cafile"] = str(self.ca_file)
        if listener.asks_certificate:
            client = self._directory / f"client-{number}-{user}"
            out |= {"ssl_certfile": f"{client}.pem", "ssl_keyfile": f"{client}.key"}
            if listener.key_password is not None:
                out["ssl_password"] = listener.key_password
        if listener.mechanism is not None:
            out["sasl_mechanism"] = listener.mechanism
            if listener.token_server is not None:
                out["sasl_oauthbearer_token_endpoint_url"] = listener.token_server.url
                out["sasl_oauthbearer_client_id"] = user
                out["sasl_oauthbearer_client_secret"] = listener.users[user]
            elif listener.kerberos is not None:
                service, _, host = listener.kerberos.principal.partition("@")[0].partition("/")
                out["sasl_kerberos_service_name"] = service
                out["sasl_kerberos_domain_name"] = host
            elif listener.mechanism == "OAUTHBEARER":
                out["sasl_oauth_token_provider"] = UnsecuredTokens(user)
            else:
                out["sasl_plain_username"] = user
                out["sasl_plain_password"] = listener.users[user]
        return out

    def revocation_list(self, number: int) -> str:
        """Return the path of a CRL that revokes the brokers' certificates of listener *number*."""
        return str(self._directory / f"revoked-{number}.pem")


def _jaas(listener: Security) -> str:
    """Return the login module of a listener; for PLAIN it contains the passwords."""
    assert listener.mechanism is not None
    words = [_LOGIN_MODULES[listener.mechanism], "required"]
    if listener.mechanism == "PLAIN":
        words += [f"user_{name}={_quoted(password)}" for name, password in listener.users.items()]
    if listener.kerberos is not None:
        words += ["useKeyTab=true", "storeKey=true"]
        words += [f"keyTab={_quoted(listener.kerberos.keytab)}"]
        words += [f"principal={_quoted(listener.kerberos.principal)}"]
    return " ".join(words) + ";"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _super_users(listeners: Sequence[Security]) -> list[str]:
    """Return the super users: the cluster itself, and users of listeners without authorization.

    The authorizer applies to the whole broker and does not distinguish listeners.
    """
    free: set[str] = {_ANONYMOUS}
    bound: set[str] = set()
    for listener in listeners:
        (bound if listener.authorize else free).update(listener.users)
    if both := free & bound:
        raise ValueError(
            f"user {min(both)!r} is on a listener with authorization and on one without; use "
            "different names"
        )
    return sorted(free)


def _scram_credentials(listeners: Sequence[Security]) -> list[ScramCredential]:
    """Return the users of the SCRAM listeners, which Kafka stores per cluster, not per listener."""
    passwords: dict[tuple[str, str], str] = {}
    for listener in listeners:
        if listener.mechanism in _SCRAM_HASHES:
            for user, password in listener.users.items():
                if passwords.setdefault((listener.mechanism, user), password) != password:
                    raise ValueError(
                        f"user {user!r} has two passwords for {listener.mechanism}; a cluster "
                        "supports only one"
                    )
    return [
        scram_credential(mechanism, user, password, os.urandom(16))
        for (mechanism, user), password in passwords.items()
    ]


def scram_credential(mechanism: str, user: str, password: str, salt: bytes) -> ScramCredential:
    """Derive the credential that a broker stores for a password (RFC 5802)."""
    name = _SCRAM_HASHES[mechanism]
    salted = hashlib.pbkdf2_hmac(name, password.encode(), salt, _SCRAM_ITERATIONS)
    client_key = hmac.digest(salted, b"Client Key", name)
    server_key = hmac.digest(salted, b"Server Key", name)
    stored_key = hashlib.new(name, client_key).digest()
    return ScramCredential(mechanism, user, salt, stored_key, server_key, _SCRAM_ITERATIONS)
