"""A certificate authority for a test cluster, which signs server and client certificates.

Requires the package ``cryptography``. Elliptic-curve keys are used, as they are fast to generate.
"""

from __future__ import annotations

import importlib.util
import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from pykaproducer.testing._errors import ClusterError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

_LIFE = timedelta(days=3)
#: Certificates are valid from this time ago, because clocks of a container and its host may differ.
_EARLIER = timedelta(hours=1)


class Issued(NamedTuple):
    """A certificate and its private key, both as PEM."""

    certificate: str
    key: str
    serial: int


class CertificateAuthority:
    """A private authority; its :attr:`certificate` must be added to a client's trusted ones."""

    def __init__(self, name: str) -> None:
        if importlib.util.find_spec("cryptography") is None:
            raise ClusterError(
                "a cluster with TLS requires the package cryptography for its certificates: "
                'pip install "pykaproducer[testing]"'
            )
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec

        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        builder = _builder(self._name, self._name, self._key, datetime.now(UTC) + _LIFE)
        usage = _key_usage(key_cert_sign=True, crl_sign=True)
        signed = self._sign(
            builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(self._own_identifier(), critical=False)
        )
        #: The authority's certificate as PEM, for ``ssl_cafile``.
        self.certificate = _pem(signed)

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
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID as Purpose

        key = ec.generate_private_key(ec.SECP256R1())
        end = datetime.now(UTC) + (timedelta(minutes=-1) if expired else _LIFE)
        builder = _builder(_named(name), self._name, key, end)
        purpose = Purpose.SERVER_AUTH if hosts else Purpose.CLIENT_AUTH
        builder = (
            builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(
                    self._own_identifier()
                ),
                critical=False,
            )
        )
        if hosts:
            names = x509.SubjectAlternativeName([_host(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        signed = self._sign(builder)
        return Issued(_pem(signed), _key_pem(key, key_password), signed.serial_number)

    def revocation_list(self, serials: Sequence[int]) -> str:
        """Return a CRL, as PEM, that revokes the certificates with these serial numbers."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization

        now = datetime.now(UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._name)
            .last_update(now - _EARLIER)
            .next_update(now + _LIFE)
        )
        for serial in serials:
            revoked = x509.RevokedCertificateBuilder().serial_number(serial)
            builder = builder.add_revoked_certificate(revoked.revocation_date(now).build())
        signed = builder.sign(self._key, hashes.SHA256())
        pem: bytes = signed.public_bytes(serialization.Encoding.PEM)
        return pem.decode()

    def _sign(self, builder: x509.CertificateBuilder) -> x509.Certificate:
        from cryptography.hazmat.primitives import hashes

        return builder.sign(self._key, hashes.SHA256())

    def _own_identifier(self) -> x509.SubjectKeyIdentifier:
        from cryptography import x509

        return x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, end: datetime
) -> x509.CertificateBuilder:
    from cryptography import x509

    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(datetime.now(UTC), end) - _EARLIER)
        .not_valid_after(end)
    )


def _named(name: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> str:
    from cryptography.hazmat.primitives import serialization

    pem: bytes = certificate.public_bytes(serialization.Encoding.PEM)
    return pem.decode()


def _key_pem(key: ec.EllipticCurvePrivateKey, password: str | None) -> str:
    from cryptography.hazmat.primitives import serialization

    secret: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password is not None:
        secret = serialization.BestAvailableEncryption(password.encode())
    pkcs8 = serialization.PrivateFormat.PKCS8
    pem: bytes = key.private_bytes(serialization.Encoding.PEM, pkcs8, secret)
    return pem.decode()
