"""The slots whose messages the dispatcher leaves in the open chunk, until a broker takes more.

Part of the dispatcher, which alone changes it. BrokerWorkers read it when a window opens, or
their next request is no longer full.
"""

from __future__ import annotations

from collections.abc import Callable

from pykaproducer._kernel import TopicSlot
from pykaproducer._util.clock import earlier


class HeldSlots:
    """Slots that have been announced and not taken, and when they are taken at the latest.

    *partitions_of* returns the number of partitions of a topic.
    """

    def __init__(self, partitions_of: Callable[[str], int]) -> None:
        self._partitions_of = partitions_of
        self._slots: dict[TopicSlot, None] = {}
        #: When the first of them must be taken (monotonic seconds).
        self.until: float | None = None

    def __bool__(self) -> bool:
        """Return whether there are any. For any thread."""
        return bool(self._slots)

    def __contains__(self, slot: TopicSlot) -> bool:
        return slot in self._slots

    def add(self, slot: TopicSlot) -> None:
        """Add *slot*."""
        self._slots[slot] = None

    def keep(self, until: float) -> None:
        """Have all of them taken by *until*."""
        self.until = earlier(self.until, until)

    def take(self) -> list[TopicSlot]:
        """Remove all slots, and return them in the order in which they were added."""
        slots, self._slots = self._slots, {}
        self.until = None
        return list(slots)

    def nbytes(self) -> int:
        """Return the bytes of their messages. For any thread; may be slightly out of date."""
        return sum(slot.waiting()[1] for slot in list(self._slots))

    def fill_batches(self, batch_size: int, batch_messages: int) -> bool:
        """Return whether the batches of a topic's partitions would be full on average.

        Then waiting would not make them larger. For any thread; may be slightly out of date.
        """
        for slot in list(self._slots):
            rows, nbytes = slot.waiting()
            partitions = self._partitions_of(slot.topic)
            if nbytes >= batch_size * partitions or rows >= batch_messages * partitions:
                return True
        return False
