"""The other objects that a BrokerWorker uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pykaproducer._net.transport import Network
from pykaproducer._pipeline.bridge_collaborators import CallerHooks
from pykaproducer._pipeline.coordinator import Coordinator
from pykaproducer._pipeline.held_slots import HeldSlots
from pykaproducer._pipeline.last_errors import LastErrors
from pykaproducer._pipeline.metadata import Metadata
from pykaproducer._pipeline.reports import Settler
from pykaproducer._pipeline.retry import RetryHandler
from pykaproducer._util.compression import Compressor
from pykaproducer.config import Config


@dataclass(frozen=True, slots=True)
class BrokerWorkerCollaborators:
    """The other objects that the stage and its Bridge use."""

    config: Config
    network: Network
    metadata: Metadata
    retry: RetryHandler
    settler: Settler
    #: Compresses batches; None: they are not compressed.
    compressor: Compressor | None
    last_errors: LastErrors
    #: Whether batches must not linger.
    is_flushing: Callable[[], bool]
    #: The messages that the dispatcher has left in open chunks.
    held: HeldSlots
    #: Has the dispatcher take them.
    take_held: Callable[[], None]
    callers: CallerHooks
    #: Of a transactional producer; None: it is not transactional.
    coordinator: Coordinator | None
    #: Stops a worker that has long been unused.
    end_unused: Callable[[Any], None]
