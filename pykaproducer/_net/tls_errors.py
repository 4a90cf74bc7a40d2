"""Explanations of OpenSSL's errors for users of a producer."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Final

from pykaproducer._util.openssl import reason_of

#: OpenSSL's verification errors (X509_V_ERR_*), with their meaning and remedy.
_CERTIFICATES: Final[dict[int, str]] = {
    3: "ssl_crlfile has no revocation list of the CA that signed the broker's certificate",
    9: "the broker's certificate is not valid yet; check the clocks of broker and client",
    10: "the broker's certificate has expired",
    11: "the revocation list in ssl_crlfile is not valid yet",
    12: "the revocation list in ssl_crlfile has expired; get a new one from the CA",
    23: "the broker's certificate has been revoked by its CA (ssl_crlfile)",
}
#: The certificate is not signed by a trusted CA.
_UNKNOWN_AUTHORITY: Final = (2, 18, 19, 20, 21, 24, 27)
_OTHER_NAME: Final = (62, 64)

#: Alerts with which a broker rejects the client certificate.
_REFUSALS: Final = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "a certificate is required",
    "TLSV1_ALERT_UNKNOWN_CA": "the broker does not trust the CA that signed it",
    "SSLV3_ALERT_BAD_CERTIFICATE": "bad certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it has expired",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "it has been revoked",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "certificate unknown",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "the broker does not support this type of certificate",
    "SSLV3_ALERT_NO_CERTIFICATE": "a certificate is required",
    "TLSV1_ALERT_ACCESS_DENIED": "access denied",
    "TLSV1_ALERT_DECRYPT_ERROR": "its signature is wrong",
}
#: OpenSSL's errors for received data that is not TLS.
_NOT_TLS: Final = (
    "WRONG_VERSION_NUMBER",
    "UNKNOWN_PROTOCOL",
    "HTTP_REQUEST",
    "PACKET_LENGTH_TOO_LONG",
    "RECORD_LAYER_FAILURE",
    "UNEXPECTED_MESSAGE",
    "BAD_RECORD_TYPE",
)
#: OpenSSL's errors if both sides have no TLS version or cipher in common.
_NOTHING_IN_COMMON: Final = (
    "SSLV3_ALERT_HANDSHAKE_FAILURE",
    "TLSV1_ALERT_INSUFFICIENT_SECURITY",
    "TLSV1_ALERT_PROTOCOL_VERSION",
    "UNSUPPORTED_PROTOCOL",
    "NO_PROTOCOLS_AVAILABLE",
    "NO_CIPHERS_AVAILABLE",
    "WRONG_SSL_VERSION",
    "WRONG_CIPHER_RETURNED",
    "DH_KEY_TOO_SMALL",
    "NO_SHARED_CIPHER",
)


@dataclass(frozen=True, slots=True)
class Peer:
    """The broker's name, and the client's settings that error texts depend on."""

    #: The name given by the user or the cluster.
    host: str
    #: ``security_protocol``.
    protocol: str
    #: Whether there is a client certificate; None if unknown (``ssl_context``).
    has_certificate: bool | None
    #: The setting of the client certificate.
    certificate_setting: str = "ssl_certfile"
    #: The setting of the trusted certificates.
    authorities_setting: str = "ssl_cafile"

    @property
    def certified_name(self) -> str:
        """Return the name that the certificate must contain."""
        # The zone of an address is local, and the trailing dot of a name is for the resolver.
        return self.host.partition("%")[0].rstrip(".")

    @property
    def not_tls(self) -> str:
        """Return the text for a listener that does not use TLS."""
        return f"it does not use TLS; check security_protocol, which is {self.protocol}"

    def refused(self, why: str) -> str:
        """Return the text for a broker that rejects the client certificate because of *why*."""
        if self.has_certificate is False:
            return (
                "the broker requires a client certificate and none was given: set "
                "ssl_certfile and ssl_keyfile"
            )
        return f"the broker rejected the client certificate ({self.certificate_setting}): {why}"

    def hung_up_in_handshake(self, text: str, *, heard: bool) -> str:
        """Return the text for a connection that was closed during the handshake."""
        if not heard:
            return f"{text} at the start of the TLS handshake: {self.not_tls}"
        return f"{text} in the TLS handshake{self._perhaps}"

    def hung_up_after_handshake(self, text: str) -> str:
        """Return the text for a connection that was closed directly after the handshake."""
        return f"{text} right after the TLS handshake{self._perhaps}"

    @property
    def _perhaps(self) -> str:
        if self.has_certificate is False:
            return "; does it require a client certificate (ssl_certfile)?"
        return "; check the broker's log"


def handshake_text(error: ssl.SSLError, peer: Peer) -> str:
    """Return the reason for a failed handshake."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _certificate_text(error, peer)
    if error.reason in _NOT_TLS:
        return peer.not_tls
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return peer.hung_up_in_handshake("the broker closed the connection", heard=True)
    if error.reason in _NOTHING_IN_COMMON:
        certificate = (
            ", or the broker requires a client certificate (ssl_certfile)"
            if peer.has_certificate is False
            else ""
        )
        return (
            "no TLS version and cipher that both sides support (ssl_enabled_protocols, "
            f"ssl_ciphers, ssl_context){certificate}: {reason_of(error)}"
        )
    return later_text(error, peer)


def later_text(error: ssl.SSLError, peer: Peer) -> str:
    """Return the text for an error after the handshake."""
    if error.reason in _REFUSALS:
        return peer.refused(_REFUSALS[error.reason])
    return f"TLS failed: {reason_of(error)}"


def _certificate_text(error: ssl.SSLCertVerificationError, peer: Peer) -> str:
    code = error.verify_code
    if code in _OTHER_NAME:
        return (
            f"the broker's certificate is not for {peer.certified_name!r}: connect by a name that "
            "it contains, make the broker advertise that name, or disable the check with "
            "ssl_check_hostname"
        )
    if code in _UNKNOWN_AUTHORITY:
        setting = peer.authorities_setting
        remedy = f"add the CA's certificate to {setting}"
        if setting == "ssl_cafile":
            remedy = "set ssl_cafile to the CA's certificate"
        return (
            "the broker's certificate is signed by an unknown CA "
            f"({error.verify_message}): {remedy}"
        )
    if code in _CERTIFICATES:
        return _CERTIFICATES[code]
    return f"the broker's certificate is not valid: {error.verify_message}"
