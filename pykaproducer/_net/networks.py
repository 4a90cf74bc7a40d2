"""The network for the settings of a producer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pykaproducer._net.transport import Network

if TYPE_CHECKING:
    from pykaproducer._net.secure import SecureNetworkSettings


def network_for(settings: SecureNetworkSettings) -> Network:
    """Return the network that creates the connections of a producer with these settings."""
    if settings.security_protocol == "PLAINTEXT":
        return Network(settings)
    # Imported here, in a caller's thread: most producers need neither TLS nor SASL.
    from pykaproducer._net.secure import SecureNetwork

    return SecureNetwork(settings)
