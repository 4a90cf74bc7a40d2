# The open chunk of each topic: created, looked up, taken by the dispatcher.

@cython.final
cdef class TopicSlot:
    """One topic's open chunk, and the full chunks that wait ahead of it."""

    cdef readonly str topic
    # Changed under Admission's guard and this slot's lock: each of the two is enough for reading.
    cdef Chunk chunk
    cdef list full
    cdef Account account                # None: not in a table yet
    cdef Guard lock
    cdef int announced                  # the dispatcher was notified and has not taken it yet
    # Copied from the Admission whose table has the slot. 0: not in a table yet; -1: removed, see
    # _let_go().
    cdef int64_t opening
    cdef int64_t in_progress            # chunks taken and not yet settled and reported
    cdef int64_t reporting              # those of them that wait for Reports only
    cdef int64_t driven                 # those of them that a caller has in flight
    # For callers that send: see caller.pxi. None: a stage has not lent it.
    cdef CallerRoute route
    cdef dict paths                     # partition -> CallerPath
    # Since when one encodes its large message (ns): see drive_large(). 0: none does.
    cdef int64_t with_caller
    cdef CallerPath last_path           # used by the last request; None: the stages took a chunk
    cdef CallerPath rests_for           # whose messages in flight are waited for: see rest()

    def __cinit__(self):
        init_guard(&self.lock)

    cdef void open_chunk(self, Chunk chunk) noexcept:
        """Replace the open chunk; None: there is none. The caller holds Admission's guard."""
        enter_guard(&self.lock)
        self.chunk = chunk
        leave_guard(&self.lock)

    cdef int add_full(self, Chunk chunk) except -1:
        """Add a chunk to which nothing is appended. The caller holds Admission's guard."""
        enter_guard(&self.lock)
        try:
            self.full.append(chunk)
        finally:
            leave_guard(&self.lock)
        return 0

    cdef bint has(self, Chunk chunk) except -1:
        """Return whether *chunk* is not taken. The caller holds Admission's guard."""
        enter_guard(&self.lock)
        try:
            return self.chunk is chunk or chunk in self.full
        finally:
            leave_guard(&self.lock)

    cdef list take_full(self, list fresh):
        """Replace the full chunks by *fresh*. The caller holds Admission's guard."""
        cdef list full
        enter_guard(&self.lock)
        full = self.full
        self.full = fresh
        leave_guard(&self.lock)
        return full

    cdef list chunks(self):
        """Return the chunks that are not taken, the open one last."""
        cdef list found
        enter_guard(&self.lock)
        try:
            found = [] if self.full is None else self.full[:]
            if self.chunk is not None:
                found.append(self.chunk)
        finally:
            leave_guard(&self.lock)
        return found

    def lend_route(self, CallerRoute route not None):
        """Let callers partition the messages of this topic."""
        if CALLERS_MAY_SEND:
            self.route = route

    def lend_path(self, int32_t partition, CallerPath path not None):
        """Let callers send to *partition*, as long as ``path.offered``."""
        if not CALLERS_MAY_SEND:
            return
        if self.paths is None:
            self.paths = {}
        self.paths[partition] = path

    @property
    def next_deadline(self):
        """Return the time before which no row of the open chunk expires (monotonic seconds)."""
        cdef Chunk chunk
        enter_guard(&self.lock)
        chunk = self.chunk
        leave_guard(&self.lock)
        return float("inf") if chunk is None else chunk.next_deadline

    @property
    def is_empty(self):
        """Return whether there is no message to take."""
        cdef bint found
        enter_guard(&self.lock)
        found = self.chunk is None and not self.full
        leave_guard(&self.lock)
        return found

    def waiting(self):
        """Return ``(rows, bytes)`` of the chunks not taken. May be slightly out of date."""
        cdef Chunk chunk
        cdef int64_t rows = 0, size = 0
        for chunk in self.chunks():
            add_size(chunk, &rows, &size)
        return rows, size


cdef uint32_t add_size(Chunk chunk, int64_t *rows, int64_t *size) noexcept:
    """Add the rows and bytes of *chunk* to *rows* and *size*. Return the number of its rows."""
    cdef uint32_t count
    enter_guard(&chunk.lock)
    count = chunk.count
    rows[0] += count
    size[0] += chunk.nbytes
    leave_guard(&chunk.lock)
    return count


cdef class OpenChunks:
    """The open chunks of all topics. ``Admission`` appends to them."""

    cdef Budget budget
    cdef dict slots
    cdef object owner                   # passed to each chunk, for its handles
    cdef bint unconfirmed
    cdef object fake_clock              # None: the system clock
    cdef int64_t timeout                # ns
    cdef int64_t serial
    cdef int64_t opening                # number of times that it has been set up
    cdef Guard guard                    # of the open chunks and the slots

    def __cinit__(self):
        init_guard(&self.guard)

    cdef list all_slots(self):
        """Return the slots of all topics."""
        enter_guard(&self.guard)
        try:
            return list(self.slots.values())
        finally:
            leave_guard(&self.guard)

    cdef TopicSlot found_slot(self, topic):
        """Return the slot of *topic*, an exact str, or None. Runs no Python code."""
        cdef PyObject *found = NULL
        cdef TopicSlot slot
        if not find_item(self.slots, topic, &found):
            return None
        slot = <TopicSlot>found
        Py_DECREF(slot)                 # find_item() has returned a new reference
        return slot

    @cython.final
    cdef int64_t now(self) except -1:
        """Return the time of the monotonic clock, ns."""
        if self.fake_clock is None:
            return kernel_clock(0)
        return <int64_t>(self.fake_clock.monotonic() * _NS)

    cdef int64_t since_epoch(self) except -1:
        """Return the difference between the time since the epoch and ``now()``, ns.

        Computed once per chunk, because reading a clock costs about a tenth of a ``send()``.
        """
        if self.fake_clock is None:
            return kernel_clock(1) - kernel_clock(0)
        return <int64_t>((self.fake_clock.time() - self.fake_clock.monotonic()) * _NS)

    cdef TopicSlot new_slot(self, topic):
        """Return a slot for a new topic.

        It is added to the table only when a message for it is accepted. Otherwise the topic names
        of rejected messages would accumulate.
        """
        cdef TopicSlot slot
        self._check_topic(topic)
        slot = TopicSlot.__new__(TopicSlot)
        slot.topic = topic
        return slot

    @cython.final
    cdef TopicSlot entered(self, TopicSlot slot):
        """Return the slot of the same topic in the current table, adding one if necessary.

        Runs no Python code, except perhaps a finalizer.
        """
        cdef TopicSlot fresh
        cdef TopicSlot found = self.found_slot(slot.topic)
        if found is not None:
            return found
        fresh = slot if load_long(&slot.opening) == 0 else TopicSlot.__new__(TopicSlot)
        fresh.topic = slot.topic
        fresh.full = []
        fresh.account = self.budget.open_account(slot.topic)
        enter_guard(&self.guard)
        try:
            found = <TopicSlot>self.slots.setdefault(slot.topic, fresh)
            if found is fresh:
                store_long(&found.opening, self.opening)
        finally:
            leave_guard(&self.guard)
        if found is not fresh:
            self.budget.close_account(fresh.account)
        return found

    cdef Chunk new_chunk(self, TopicSlot slot):
        cdef int64_t serial
        cdef Chunk chunk = Chunk.__new__(Chunk)
        chunk.topic = slot.topic
        chunk.origin = slot
        chunk.budget = self.budget
        chunk.account = slot.account
        chunk.errors = []
        chunk.owner = self.owner
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
        """Close the topic's open chunk and return all waiting chunks, in order."""
        cdef Chunk chunk, last
        cdef list chunks, fresh = []
        enter_guard(&self.guard)
        try:
            store_int(&slot.announced, False)
            slot.last_path = None
            last = slot.chunk
            if last is not None and last.count:
                slot.add_full(last)     # first: without memory, nothing is taken
            slot.open_chunk(None)
            chunks = slot.take_full(fresh)
            # Before the guard is left, so that _is_at_rest() never misses a chunk.
            for chunk in chunks:
                close_chunk(chunk)
        finally:
            leave_guard(&self.guard)
        return chunks

    def _let_go(self, topic):
        """Remove the topic's slot from the table. Return False if the slot has messages.

        Safe against a ``send()`` in another thread, which (1) looks up the slot, and (2) appends to
        it under the guard. If (2) is first, there is an open chunk and the slot stays. Otherwise
        (2) notices that the slot was removed, and adds a new one to the table.
        """
        cdef TopicSlot slot
        enter_guard(&self.guard)
        try:
            slot = self.slots.get(topic)
            if slot is None:
                return True
            if slot.chunk is not None or slot.full or slot.announced:
                return False
            store_long(&slot.opening, -1)
            del self.slots[topic]
        finally:
            leave_guard(&self.guard)
        self.budget.close_account(slot.account)
        return True

    def _take_all(self, list chunks=None):
        """Take the chunks of all topics, also those of callers, and return them. Lend no more.

        They are added to *chunks*, if it is given: after a MemoryError, it has what was taken.
        """
        cdef TopicSlot slot
        cdef list taken, slots = self.all_slots()
        if chunks is None:
            chunks = []
        for slot in slots:
            slot.route = slot.last_path = slot.rests_for = None
        chunks += take_callers(slots)
        for slot in slots:
            slot.paths = None
            taken = self._take(slot)
            try:
                chunks += taken
            except MemoryError:
                slot.full = taken       # nothing is appended to it any more
                atomic_add(&slot.in_progress, -len(taken))  # they are closed again
                raise
        return chunks

    def _send_open(self, seconds):
        """Send, in this thread, the messages that no stage has taken, if all are in one open chunk.

        Before that, wait for the topic's request in flight. Only if no others are in progress; see
        caller.pxi. *seconds*: how long to wait at most; None: no limit.
        """
        cdef TopicSlot slot, found = None
        cdef ProduceRequest request
        cdef int64_t start
        cdef double left = _NO_TIMEOUT if seconds is None else seconds
        if not CALLERS_MAY_SEND:
            return
        for slot in self.all_slots():
            if slot.full or slot.in_progress > slot.driven:
                return
            if slot.chunk is not None or slot.driven:
                if found is not None:
                    return
                found = slot
        if found is None:
            return
        start = kernel_clock(0)
        while left > 0 and found.driven:
            request = driven_request(found, None)
            if request is None or not send_as_caller(found, part_of(request).chunk, left):
                return
            left -= (kernel_clock(0) - start) / <double>_NS
            start = kernel_clock(0)
        if found.chunk is not None and left > 0:
            send_as_caller(found, found.chunk, left)

    def _is_at_rest(self):
        """Return whether all accepted messages are settled and reported."""
        cdef TopicSlot slot
        if gil_is_wanted():
            let_stages_run()            # a thread that looks again and again must not starve them
        enter_guard(&self.guard)
        try:
            for slot in self.slots.values():
                if load_long(&slot.in_progress) or slot.chunk is not None or slot.full:
                    return False
        finally:
            leave_guard(&self.guard)
        return True

    def _take_callers(self):
        """Take the requests of callers that are in flight, and return their chunks."""
        return take_callers(self.all_slots())

    def _open_rows(self):
        """Return ``(rows, bytes, time at which the oldest was opened)`` of the chunks not taken."""
        cdef Chunk chunk
        cdef int64_t rows = 0, size = 0
        cdef object oldest = None
        for slot in self.all_slots():
            for chunk in (<TopicSlot>slot).chunks():
                if add_size(chunk, &rows, &size):
                    oldest = chunk.opened if oldest is None else min(oldest, chunk.opened)
        return rows, size, oldest

    def _unannounced(self):
        """Return slots with rows whose announcement the dispatcher may not have received.

        A KeyboardInterrupt has interrupted it, or the sending thread has not reached it yet.
        """
        cdef list slots = []
        enter_guard(&self.guard)        # wait for a row that is being appended now
        leave_guard(&self.guard)
        for slot in self.all_slots():
            if not (<TopicSlot>slot).is_empty:
                slots.append(slot)
        return slots
