"""The other objects that the stage Coordinator uses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from pykaproducer._machines.transaction_effects import CommitOffsets, GiveUpOffsets
from pykaproducer._machines.transaction_states import TransactionFailure
from pykaproducer._net.transport import Network
from pykaproducer._pipeline.coordinator_items import Drain, TransactionChanged
from pykaproducer._pipeline.group import GroupUnused, OffsetsAnswered
from pykaproducer._pipeline.last_errors import LastErrors
from pykaproducer._pipeline.metadata import Metadata
from pykaproducer._pipeline.worker import AnyWorker, Worker
from pykaproducer.config import Config


class Admission(Protocol):
    """The part of the producer that opens and shuts the admission of records."""

    def open_transaction(self, serial: int) -> None:
        """Accept records of transaction *serial* from now on."""

    def shut_transaction(self, failure: TransactionFailure) -> None:
        """Accept none; ``send()`` raises the error that *failure* describes."""


@dataclass(frozen=True, slots=True)
class CoordinatorCollaborators:
    """The other objects that the stage uses."""

    config: Config
    network: Network
    metadata: Metadata
    last_errors: LastErrors
    admission: Admission
    #: Returns the BrokerWorkers.
    broker_workers: Callable[[], Iterable[Worker[TransactionChanged | Drain]]]
    #: Calls a function when all rows accepted so far have their outcome.
    watch_rows: Callable[[Callable[[], None]], None]
    #: Calls a function when their callbacks have run, too.
    watch_reports: Callable[[Callable[[], None]], None]
    #: Fails all rows without outcome, and then calls the function.
    fail_rows: Callable[[TransactionFailure, Callable[[], None]], None]
    #: Makes the stage of a group from its name, its ordinal and the function for its results.
    new_group: Callable[
        [str, int, Callable[[OffsetsAnswered | GroupUnused], None]],
        Worker[CommitOffsets | GiveUpOffsets],
    ]
    #: Stops the stage of a group that is not used any more.
    release_group: Callable[[AnyWorker], None]
