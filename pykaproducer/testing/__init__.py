"""Public test support: a mock producer, a scripted cluster, a real one, a faulty network, a clock.

Names are imported on first use, so that each can be used without the dependencies of the others.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pykaproducer.testing._broker import Broker as Broker
    from pykaproducer.testing._errors import ClusterError as ClusterError
    from pykaproducer.testing._errors import NotInstalledError as NotInstalledError
    from pykaproducer.testing.clock import FakeClock as FakeClock
    from pykaproducer.testing.cluster import KafkaCluster as KafkaCluster
    from pykaproducer.testing.mock import MockKafkaProducer as MockKafkaProducer
    from pykaproducer.testing.mock import MockProducer as MockProducer
    from pykaproducer.testing.mock import SentRecord as SentRecord
    from pykaproducer.testing.proxy import Cut as Cut
    from pykaproducer.testing.proxy import FaultProxy as FaultProxy
    from pykaproducer.testing.scripted import ScriptedCluster as ScriptedCluster
    from pykaproducer.testing.security import KerberosService as KerberosService
    from pykaproducer.testing.security import Security as Security
    from pykaproducer.testing.security import UnsecuredTokens as UnsecuredTokens
    from pykaproducer.testing.token_server import TokenReply as TokenReply
    from pykaproducer.testing.token_server import TokenRequest as TokenRequest
    from pykaproducer.testing.token_server import TokenServer as TokenServer

#: The module of each public name.
_HOMES = {
    "Broker": "_broker",
    "ClusterError": "_errors",
    "Cut": "proxy",
    "FakeClock": "clock",
    "FaultProxy": "proxy",
    "KafkaCluster": "cluster",
    "KerberosService": "security",
    "MockKafkaProducer": "mock",
    "MockProducer": "mock",
    "NotInstalledError": "_errors",
    "ScriptedCluster": "scripted",
    "Security": "security",
    "SentRecord": "mock",
    "TokenReply": "token_server",
    "TokenRequest": "token_server",
    "TokenServer": "token_server",
    "UnsecuredTokens": "security",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
