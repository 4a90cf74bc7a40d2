"""A certificate authority for a test cluster, which signs server and client certificates.

Requires the packages ``trustme``, which makes the certificates, and ``cryptography``, for what
trustme does not have: PKCS #8 keys (the only ones that Kafka reads), passwords and CRLs.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from pykaproducer.testing._errors import ClusterError

#: How long a revocation list is valid.
_LIFE = timedelta(days=3)
#: Revocation lists are valid from this time ago, because clocks of a container and its host may
#: differ.
_EARLIER = timedelta(hours=1)
#: The host of users' certificates: Java refuses a certificate with an empty list of hosts.
_NO_HOST = "client.invalid"


class Issued(NamedTuple):
    """A certificate and its private key, both as PEM."""

    certificate: str
    key: str
    serial: int


class CertificateAuthority:
    """A private authority; its :attr:`certificate` must be added to a client's trusted ones."""

    def __init__(self, name: str) -> None:
        missing = [p for p in ("trustme", "cryptography") if importlib.util.find_spec(p) is None]
        if missing:
            raise ClusterError(
                f"a cluster with TLS requires the package {missing[0]} for its certificates: "
                'pip install "pykaproducer[testing]"'
            )
        import trustme

        self._authority = trustme.CA(organization_unit_name=name)
        #: The authority's certificate as PEM, for ``ssl_cafile``.
        self.certificate = self._authority.cert_pem.bytes().decode()

    def issue(
        self,
        name: str,
        hosts: Sequence[str] = (),
        *,
        expired: bool = False,
        key_password: str | None = None,
    ) -> Issued:
        """Issue a certificate for a server at *hosts* (names and addresses), or else a user."""
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization

        end = datetime.now(UTC) - timedelta(minutes=1) if expired else None
        issued = self._authority.issue_cert(*hosts or [_NO_HOST], common_name=name, not_after=end)
        pem = issued.cert_chain_pems[0].bytes()
        secret: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if key_password is not None:
            secret = serialization.BestAvailableEncryption(key_password.encode())
        key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
        pkcs8 = serialization.PrivateFormat.PKCS8
        key_pem = key.private_bytes(serialization.Encoding.PEM, pkcs8, secret)
        serial = x509.load_pem_x509_certificate(pem).serial_number
        return Issued(pem.decode(), key_pem.decode(), serial)

    def revocation_list(self, serials: Sequence[int]) -> str:
        """Return a CRL, as PEM, that revokes the certificates with these serial numbers."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization

        now = datetime.now(UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(x509.load_pem_x509_certificate(self.certificate.encode()).subject)
            .last_update(now - _EARLIER)
            .next_update(now + _LIFE)
        )
        for serial in serials:
            revoked = x509.RevokedCertificateBuilder().serial_number(serial)
            builder = builder.add_revoked_certificate(revoked.revocation_date(now).build())
        key = serialization.load_pem_private_key(self._authority.private_key_pem.bytes(), None)
        signed = builder.sign(key, hashes.SHA256())  # type: ignore[arg-type]  # an EC key
        return signed.public_bytes(serialization.Encoding.PEM).decode()
