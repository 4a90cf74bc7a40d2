"""What OpenSSL's errors mean for somebody who runs a producer."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Final

#: OpenSSL's verification errors (X509_V_ERR_*) with what they mean and what to do.
_CERTIFICATES: Final[dict[int, str]] = {
    3: "ssl_crlfile has no list of the authority that has signed the broker's certificate",
    9: "the broker's certificate is not valid yet; are the clocks right?",
    10: "the broker's certificate has expired",
    11: "the list in ssl_crlfile is not valid yet",
    12: "the list in ssl_crlfile has expired; get a new one from the authority",
    23: "the broker's certificate has been revoked by its authority (ssl_crlfile)",
}
#: Nobody that we trust has signed it.
_UNKNOWN_AUTHORITY: Final = (2, 18, 19, 20, 21, 24, 27)
_OTHER_NAME: Final = (62, 64)

#: The broker's own words for what it has against the client's certificate.
_REFUSALS: Final = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it demands one",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not know the authority that has signed it",
    "SSLV3_ALERT_BAD_CERTIFICATE": "bad certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it has expired",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "it has been revoked",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "certificate unknown",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "it is of a kind that the broker does not take",
    "SSLV3_ALERT_NO_CERTIFICATE": "it demands one",
    "TLSV1_ALERT_ACCESS_DENIED": "access denied",
    "TLSV1_ALERT_DECRYPT_ERROR": "its signature is wrong",
}
#: What OpenSSL says when what has come is not TLS at all.
_NOT_TLS: Final = (
    "WRONG_VERSION_NUMBER",
    "UNKNOWN_PROTOCOL",
    "HTTP_REQUEST",
    "PACKET_LENGTH_TOO_LONG",
    "RECORD_LAYER_FAILURE",
    "UNEXPECTED_MESSAGE",
    "BAD_RECORD_TYPE",
)
#: Nothing that both sides can do.
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
    """Whom we speak to, and what we have brought along."""

    #: The name that the user, or the cluster, has given.
    host: str
    #: ``security_protocol``.
    protocol: str
    #: Whether ``ssl_certfile`` is set; None: it is not known (``ssl_context``).
    has_certificate: bool | None

    @property
    def certified_name(self) -> str:
        """The name that has to be in the certificate."""
        # The zone of an address is this machine's, the dot behind a name the resolver's.
        return self.host.partition("%")[0].rstrip(".")

    @property
    def not_tls(self) -> str:
        """There is somebody, and it is not TLS what they speak."""
        return f"it does not speak TLS; is security_protocol right? it is {self.protocol}"

    def refused(self, why: str) -> str:
        """The broker has something against our certificate."""
        if self.has_certificate is False:
            return (
                "the broker demands a certificate of the client and none was given: give "
                "ssl_certfile and ssl_keyfile"
            )
        return f"the broker refuses the client's certificate (ssl_certfile): {why}"

    def hung_up_in_handshake(self, text: str, *, heard: bool) -> str:
        """The connection has ended before the handshake had."""
        if not heard:
            return f"{text} at the first words of TLS: {self.not_tls}"
        return f"{text} in the TLS handshake{self._perhaps}"

    def hung_up_behind_handshake(self, text: str) -> str:
        """The connection has ended as soon as it stood."""
        return f"{text} right after the TLS handshake{self._perhaps}"

    @property
    def _perhaps(self) -> str:
        if self.has_certificate is False:
            return "; does it demand a certificate of the client (ssl_certfile)?"
        return "; its log may say why"


def handshake_text(error: ssl.SSLError, peer: Peer) -> str:
    """Why there is no agreement on TLS."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _certificate_text(error, peer)
    if error.reason in _NOT_TLS:
        return peer.not_tls
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return peer.hung_up_in_handshake("the broker closed the connection", heard=True)
    if error.reason in _NOTHING_IN_COMMON:
        certificate = (
            ", or the broker demands a certificate of the client (ssl_certfile)"
            if peer.has_certificate is False
            else ""
        )
        return (
            f"no TLS version and cipher that both sides take (ssl_ciphers, ssl_context)"
            f"{certificate}: {_plain(error)}"
        )
    return later_text(error, peer)


def later_text(error: ssl.SSLError, peer: Peer) -> str:
    """What has gone wrong, once the connection stood."""
    if error.reason in _REFUSALS:
        return peer.refused(_REFUSALS[error.reason])
    return f"TLS failed: {_plain(error)}"


def _certificate_text(error: ssl.SSLCertVerificationError, peer: Peer) -> str:
    code = error.verify_code
    if code in _OTHER_NAME:
        return (
            f"the broker's certificate is not for {peer.certified_name!r}: it is of another host "
            "name; connect by a name that is in it, have the broker advertise that name, or turn "
            "the check off with ssl_check_hostname"
        )
    if code in _UNKNOWN_AUTHORITY:
        return (
            "the broker's certificate is signed by an authority that is not known here "
            f"({error.verify_message}): give the authority's certificate with ssl_cafile"
        )
    if code in _CERTIFICATES:
        return _CERTIFICATES[code]
    return f"the broker's certificate is not valid: {error.verify_message}"


def _plain(error: ssl.SSLError) -> str:
    """OpenSSL's reason without numbers and places in its source."""
    return (error.reason or str(error)).lower().replace("_", " ")
