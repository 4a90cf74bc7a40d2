"""The functions of the producer's admission that its pipeline calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from pykaproducer._kernel import Chunk, TopicSlot

if TYPE_CHECKING:
    from pykaproducer._pipeline.coordinator import Admission


class AdmissionFunctions(NamedTuple):
    """The functions of the producer's admission that its pipeline calls."""

    #: Takes the open chunks of a slot.
    take: Callable[[TopicSlot], list[Chunk]]
    #: Takes the chunks of all slots, and of all callers. Adds them to the list, if one is given.
    take_all: Callable[..., list[Chunk]]
    #: Takes the chunks that callers have sent, and that have no outcome yet.
    take_callers: Callable[[], list[Chunk]]
    #: Releases the slot of a topic; returns False if a message has just arrived in it.
    release_slot: Callable[[str], bool]
    #: Called when a stage has crashed: nothing more is admitted.
    on_broken: Callable[[], None]
    #: Opens and shuts admission for transactions; None: there are none.
    transactions: Admission | None = None
