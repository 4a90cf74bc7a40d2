# The open chunk of each topic: made, looked up, taken by the dispatcher.

@cython.final
cdef class TopicSlot:
    """One topic's open chunk, and the full ones that wait before it."""

    cdef readonly str topic
    cdef Chunk chunk
    cdef list full
    cdef bint announced                 # the dispatcher was notified and has not come yet
    # Of the Admission, in whose table it is; 0: in none yet; -1: not any more, see _let_go().
    cdef int64_t opening


cdef class OpenChunks:
    """Every topic's open chunk. ``Admission`` appends to them."""

    cdef Budget budget
    cdef dict slots
    cdef object home                    # passed to each chunk, for its handles
    cdef bint unconfirmed
    cdef object fake_clock              # None: the machine's
    cdef int64_t timeout                # ns
    cdef int64_t serial
    cdef int64_t opening                # how often it has been set up
    cdef Guard guard                    # of the open chunks and the slots

    @cython.final
    cdef int64_t now(self) except -1:
        """The monotonic clock, ns."""
        if self.fake_clock is None:
            return kernel_clock(0)
        return <int64_t>(self.fake_clock.monotonic() * _NS)

    cdef int64_t since_epoch(self) except -1:
        """What to add to ``now()`` for the time since the epoch. Taken once a chunk: a look at
        one clock costs about a tenth of a ``send()``."""
        if self.fake_clock is None:
            return kernel_clock(1) - kernel_clock(0)
        return <int64_t>((self.fake_clock.time() - self.fake_clock.monotonic()) * _NS)

    cdef TopicSlot new_slot(self, topic):
        """A slot for a topic that is new here. Not in the table before a message for it is
        accepted: the names of refused messages would stay there."""
        cdef TopicSlot slot
        self._check_topic(topic)
        slot = TopicSlot.__new__(TopicSlot)
        slot.topic = topic
        return slot

    @cython.final
    cdef TopicSlot entered(self, TopicSlot slot):
        """Return the slot of the same topic in the present table.

        Runs no Python code, except perhaps a finalizer.
        """
        cdef TopicSlot fresh
        cdef PyObject *found = PyDict_GetItemWithError(self.slots, slot.topic)
        if found != NULL:
            return <TopicSlot>found
        fresh = slot if slot.opening == 0 else TopicSlot.__new__(TopicSlot)
        fresh.topic = slot.topic
        fresh.full = []
        slot = <TopicSlot>self.slots.setdefault(slot.topic, fresh)
        if slot is fresh:
            slot.opening = self.opening
        return slot

    cdef Chunk new_chunk(self, TopicSlot slot):
        cdef int64_t serial
        cdef Chunk chunk = Chunk.__new__(Chunk)
        chunk.topic = slot.topic
        chunk.budget = self.budget
        chunk.errors = []
        chunk.home = self.home
        chunk.since_epoch = self.since_epoch()
        chunk.opened = self.now() / <double>_NS
        chunk.unconfirmed = self.unconfirmed
        chunk.timeout = self.timeout
        enter_guard(&self.guard)
        self.serial += 1
        serial = self.serial
        leave_guard(&self.guard)
        chunk.serial = serial
        return chunk

    def _take(self, TopicSlot slot not None):
        """Close the topic's open chunk and hand over all that wait, in order."""
        cdef Chunk chunk
        cdef list chunks, fresh = []
        enter_guard(&self.guard)
        try:
            slot.announced = False
            chunks = slot.full
            slot.full = fresh
            chunk = slot.chunk
            slot.chunk = None
        finally:
            leave_guard(&self.guard)
        if chunk is not None and chunk.count:
            chunks.append(chunk)
        for chunk in chunks:
            chunk.trim()
            chunk.unreported = chunk.count
            chunk.closed = True
        return chunks

    def _let_go(self, topic):
        """Remove the topic's slot from the table. Return False if a message has come into it.

        Safe against a ``send()`` in another thread, which has (1) looked the slot up, and (2)
        appends to it under the guard. If that comes first there is an open chunk, and the slot
        stays. Otherwise (2) finds that the slot was let go, and enters another one in its place.
        """
        cdef TopicSlot slot
        enter_guard(&self.guard)
        try:
            slot = self.slots.get(topic)
            if slot is None:
                return True
            if slot.chunk is not None or slot.full or slot.announced:
                return False
            slot.opening = -1
            del self.slots[topic]
            return True
        finally:
            leave_guard(&self.guard)

    def _take_all(self):
        """The chunks of every topic, taken."""
        return [chunk for slot in list(self.slots.values()) for chunk in self._take(slot)]

    def _open_rows(self):
        """Return ``(rows, bytes, when the oldest was opened)`` of the chunks not yet taken."""
        cdef Chunk chunk
        cdef int64_t rows = 0, size = 0
        cdef object oldest = None
        for slot in list(self.slots.values()):
            for chunk in [*(<TopicSlot>slot).full, (<TopicSlot>slot).chunk]:
                if chunk is not None and chunk.count:
                    rows += chunk.count
                    size += chunk.nbytes
                    oldest = chunk.opened if oldest is None else min(oldest, chunk.opened)
        return rows, size, oldest

    def _unannounced(self):
        """Return slots with rows whose announcement the dispatcher may not have received.

        A KeyboardInterrupt has cut it short, or the thread that makes it has not come so far.
        """
        enter_guard(&self.guard)        # a row that is being appended now is seen
        leave_guard(&self.guard)
        return [slot for slot in list(self.slots.values())
                if (<TopicSlot>slot).chunk is not None or (<TopicSlot>slot).full]
