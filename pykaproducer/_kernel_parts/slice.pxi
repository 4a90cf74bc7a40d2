# The slice: rows of one chunk that go the same way. Claimed, settled, reported.

@cython.final
@cython.no_gc
cdef class Slice:
    """Rows of one chunk that go the same way: ``rows[0..count)``, or a range from ``start``."""

    cdef readonly Chunk chunk
    cdef uint32_t *rows                 # NULL: the range start..start+count
    cdef uint32_t start
    cdef readonly uint32_t count
    cdef readonly int32_t partition
    cdef readonly Py_ssize_t nbytes     # payload bytes
    cdef public int level               # how many attempts have failed: the retry level
    cdef public int retries_used        # how many of these by a broker's temporary error
    cdef public uint32_t most           # rows of it that go into one batch; 0: as many as fit

    def __cinit__(self):
        self.rows = NULL

    def __dealloc__(self):
        free(self.rows)

    def __len__(self):
        return self.count

    @property
    def topic(self):
        """Topic of these rows."""
        return self.chunk.topic

    cdef allocate(self, Py_ssize_t count):
        self.rows = <uint32_t *>new_numbers((count + 1) * sizeof(uint32_t))
        if self.rows == NULL:
            raise MemoryError()
        self.count = count

    cdef inline uint32_t at(self, uint32_t i) noexcept nogil:
        return self.rows[i] if self.rows != NULL else self.start + i

    def row_numbers(self):
        """Row numbers in the chunk, in order."""
        return [self.at(i) for i in range(self.count)]

    def waiting(self):
        """How many of these rows have no outcome yet."""
        cdef uint32_t i, n = 0
        for i in range(self.count):
            if not flags_of(self.chunk, self.at(i)) & SETTLED:
                n += 1
        return n

    @property
    def is_settled(self):
        """Return whether every one of these rows has its outcome; stops at one that has none."""
        cdef uint32_t i
        cdef bint settled = True
        with self.chunk.lock:
            for i in range(0 if self.chunk.over() else self.count):
                if not self.chunk.rows[self.at(i)].flags & SETTLED:
                    settled = False
                    break
        return settled

    def oldest_deadline(self):
        """Earliest deadline of the rows without outcome (monotonic seconds), None if all have."""
        cdef int64_t earliest = 0x7fffffffffffffff
        cdef uint32_t i
        cdef Row *row
        with self.chunk.lock:
            for i in range(0 if self.chunk.over() else self.count):
                row = &self.chunk.rows[self.at(i)]
                if not row.flags & SETTLED and row.deadline < earliest:
                    earliest = row.deadline
        return None if earliest == 0x7fffffffffffffff else earliest / <double>_NS

    # -- sealing ---------------------------------------------------------------------------

    def claim(self, Py_ssize_t room, Py_ssize_t most, bint at_least_one=False):
        """Take rows from the front for a batch with *room* bytes and *most* rows left.

        Returns a Slice of them, None if there are none or the first does not fit. With
        *at_least_one* the first fits whatever its size: a batch of its own. They count as possibly
        persisted from now on, so an expiry in the next moment says so; ``unclaim`` takes that back
        if the batch is never written. Rows that have expired are left out. The claimed payload is
        pinned until ``encode_batch`` has read it.
        """
        cdef Slice part = Slice.__new__(Slice)
        cdef uint32_t seen
        part.chunk = self.chunk
        part.partition = self.partition
        part.level = self.level
        part.retries_used = self.retries_used
        part.most = self.most
        if self.most and most > self.most:
            most = self.most
        room, most = max(room, 0), max(most, 0)
        part.allocate(min(<Py_ssize_t>self.count, most))
        part.count = 0
        seen = self.claim_into(part, self.chunk, room, most, at_least_one)
        self.drop_front(seen)
        return part if part.count else None

    cdef uint32_t claim_into(self, Slice part, Chunk chunk, Py_ssize_t room, Py_ssize_t most,
                             bint at_least_one) noexcept nogil:
        """Claim rows from the front into *part*; how many have been seen: claimed, or expired."""
        cdef uint32_t seen
        cdef Row *row
        cdef Py_ssize_t size
        with chunk.lock:
            if chunk.over():
                return self.count           # all of them expired; the table is gone
            for seen in range(self.count):
                row = &chunk.rows[self.at(seen)]
                size = payload_size(row)
                if not row.flags & SETTLED:
                    if part.count >= most:
                        break
                    if size + _RECORD_ALLOWANCE > room and (part.count or not at_least_one):
                        break
                    row.flags |= CLAIMED
                    part.rows[part.count] = self.at(seen)
                    part.count += 1
                    part.nbytes += size
                    room -= size + _RECORD_ALLOWANCE
                self.nbytes -= size
            else:
                seen = self.count
            if part.count:
                chunk.pins += 1
        return seen

    cdef void drop_front(self, uint32_t seen) noexcept:
        """The first *seen* rows are no longer in this slice."""
        cdef uint32_t i
        self.count -= seen
        if self.count == 0:
            self.nbytes = 0
        if self.rows == NULL:
            self.start += seen
        elif seen:
            # The tail moves to the front: a slice is cut a few times at most.
            for i in range(self.count):
                self.rows[i] = self.rows[i + seen]

    def doubt(self):
        """An attempt of these rows may have been appended: any later failure says so."""
        cdef uint32_t i
        cdef Row *row
        with self.chunk.lock:
            for i in range(0 if self.chunk.over() else self.count):
                row = &self.chunk.rows[self.at(i)]
                if not row.flags & SETTLED:
                    row.flags |= POSSIBLY

    def unclaim(self):
        """The batch with these rows was not appended: they are as before ``claim``."""
        cdef uint32_t i
        cdef Row *row
        with self.chunk.lock:
            for i in range(0 if self.chunk.over() else self.count):
                row = &self.chunk.rows[self.at(i)]
                if not row.flags & SETTLED:
                    row.flags &= 0xff - CLAIMED

    # -- waiting -----------------------------------------------------------------------------

    def take_along(self):
        """Give the payload of these rows memory of its own, where they share it with others.

        For a slice that has to wait long, so that one dead partition does not pin the memory of
        the others. No row of it may be in the middle of being encoded. The rows' lines in the
        table stay where they are: that is the chunk's, and goes with its last row.
        """
        move_out(self.chunk, self)
        self.chunk.budget.wake()

    # -- settling: each row once -------------------------------------------------------------

    def deliver(self, int64_t base_offset, int64_t timestamp=-1, *, bint wake=True,
                Series latency=None, double now=0):
        """The broker has these rows, from *base_offset* on (-1: offsets unknown).

        *timestamp*: the broker's, where it overrides (LogAppendTime), else -1. *wake*: wake those
        who wait for one of them; else the returned Slice's ``wake_waiters`` must be called.
        *latency*: is told how long each has taken, up to *now* (monotonic seconds). Returns a Slice
        of the rows that this call settled (an expired row keeps its earlier outcome), to be given
        to ``report``; None if it settled none.
        """
        cdef Chunk chunk = self.chunk
        cdef Slice settled = self.none_of_it()
        cdef int64_t now_ns = as_ns(now)
        cdef Sample *sample = NULL if latency is None else latency.sample_at(now)
        cdef Run run
        cdef uint32_t i
        cdef Row *row
        memset(&run, 0, sizeof(Run))
        with chunk.lock:
            for i in range(0 if chunk.over() else self.count):
                row = &chunk.rows[self.at(i)]
                if row.flags & SETTLED:
                    continue
                if sample != NULL:
                    add_age(latency, sample, &run, now_ns - accepted_at(chunk, row))
                row.deadline = base_offset + i if base_offset >= 0 else -1
                if timestamp >= 0:
                    row.timestamp = timestamp
                add_flags(&row.flags, SETTLED)
                settled.rows[settled.count] = self.at(i)
                settled.count += 1
            end_run(latency, sample, &run)
            self.size_of(settled)
        return self.told(settled, wake)

    def fail(self, not_persisted, possibly_persisted, *, bint wake=True):
        """These rows have failed; a row's error is the one that fits what may be in the log.

        *wake*: as for ``deliver``.
        """
        cdef Chunk chunk = self.chunk
        cdef Slice settled
        cdef uint32_t i
        cdef Row *row
        cdef uint8_t possibly = 0
        cdef Py_ssize_t first = len(chunk.errors)
        chunk.errors.append(not_persisted)
        chunk.errors.append(possibly_persisted)
        settled = self.none_of_it()     # from here on nothing raises
        with chunk.lock:
            for i in range(0 if chunk.over() else self.count):
                row = &chunk.rows[self.at(i)]
                if row.flags & SETTLED:
                    continue
                row.deadline = -1
                row.error = <uint16_t>(first + 1 if row.flags & (POSSIBLY | CLAIMED) else first)
                possibly |= row.flags & (POSSIBLY | CLAIMED)
                add_flags(&row.flags, SETTLED | FAILED)
                chunk.failures = True
                settled.rows[settled.count] = self.at(i)
                settled.count += 1
            self.size_of(settled)
        # Rows that fail one by one must not use up the 16 bits of Row.error, nor must those who
        # come to fail what has its outcome already.
        if not possibly and len(chunk.errors) == first + 2:
            del chunk.errors[first + (1 if settled.count else 0):]
        return self.told(settled, wake)

    cdef Slice none_of_it(self):
        """Return an empty slice with room for all of these rows.

        A broker's answer cannot be judged twice: without memory it shares the room of this slice,
        whose row numbers are read before those of settled rows are written over them. Then
        :meth:`told` empties this slice.
        """
        cdef Slice part = Slice.__new__(Slice)
        part.chunk = self.chunk
        part.partition = self.partition
        part.rows = <uint32_t *>new_numbers((self.count + 1) * sizeof(uint32_t))
        if part.rows == NULL:
            if self.rows == NULL:
                raise MemoryError()
            part.rows = self.rows
        return part

    cdef void size_of(self, Slice settled) noexcept nogil:
        """How large the rows are that have just been settled, of these."""
        cdef uint32_t i
        if settled.count == self.count:
            settled.nbytes = self.nbytes
            return
        for i in range(settled.count):
            settled.nbytes += payload_size(&self.chunk.rows[settled.at(i)])

    cdef Slice told(self, Slice settled, bint wake):
        """Wake those who wait, if *wake*; *settled*, or None if it has no row."""
        if settled.rows == self.rows:
            self.rows = NULL        # it is that slice's now
            self.count = 0
            self.nbytes = 0
        if not settled.count:
            return None
        if wake:
            settled.wake_waiters()
        return settled

    def wake_waiters(self):
        """Wake the threads that wait for one of these settled rows."""
        if self.chunk.waiters:
            wake_waiters(self)

    # -- reporting -----------------------------------------------------------------------------

    @property
    def wants_report(self):
        """Whether a callback has to run for any of these rows (else no thread need be woken)."""
        return self.chunk.callbacks != NULL or bool(self.chunk.extras)

    def report(self, on_error):
        """Run the callbacks of these settled rows, then let their memory go.

        ``on_error(callback, exception)`` is called for a callback that raises; what that raises in
        its turn goes to ``sys.unraisablehook``. Returns True if these were the last rows of the
        chunk.
        """
        cdef Chunk chunk = self.chunk
        cdef uint32_t i, row
        cdef object callback, error, handle
        for i in range(self.count):
            row = self.at(i)
            if chunk.callbacks != NULL and chunk.callbacks[row] != NULL:
                callback = <object>chunk.callbacks[row]
                Py_DECREF(callback)
                chunk.callbacks[row] = NULL
                error = error_of(chunk, row) if tell(chunk, row) & FAILED else None
                handle = new_handle(chunk, row)
                try:
                    callback(error, handle)
                except BaseException as failure:
                    complain(on_error, callback, failure)
                callback = handle = error = None
            if chunk.extras:
                for callback in chunk.extras.pop(row, ()):
                    handle = new_handle(chunk, row)
                    try:
                        callback(handle)
                    except BaseException as failure:
                        complain(on_error, callback, failure)
                callback = handle = None
            if i & (_ROWS_A_LOOK - 1) == _ROWS_A_LOOK - 1 and gil_is_wanted():
                let_stages_run()
        return self.finish()

    def finish(self):
        """Let the memory of these reported rows go; True if they were the chunk's last."""
        cdef Chunk chunk = self.chunk
        cdef uint32_t i
        cdef bint last
        for i in range(self.count):
            if chunk.rows[self.at(i)].flags & FAILED and chunk.rows[self.at(i)].holders:
                self.keep(self.at(i))
        last = chunk.let_go(self)
        if last:
            chunk.free_callbacks()
            chunk.retire()
        chunk.budget.wake()
        return last

    cdef keep(self, uint32_t row):
        # A failed message's payload belongs to whoever holds its handle: to send it again.
        cdef Chunk chunk = self.chunk
        cdef Row *r = &chunk.rows[row]
        # Making a dict may run finalizers, which may do the same: look again behind it.
        cdef dict fresh = {} if chunk.kept is None else None
        if chunk.kept is None:
            chunk.kept = fresh
        chunk.kept[row] = (as_bytes(r.key, r.key_size), as_bytes(r.value, r.value_size))

    def first_error(self):
        """The error of the first row that failed, None if none did."""
        cdef uint32_t i
        for i in range(self.count):
            if flags_of(self.chunk, self.at(i)) & FAILED:
                return error_of(self.chunk, self.at(i))
        return None

    def untold_failures(self):
        """How many of these rows failed with nobody told: no callback, outcome never read."""
        cdef uint32_t i, n = 0
        if not self.chunk.failures:
            return 0
        for i in range(self.count):
            if flags_of(self.chunk, self.at(i)) & (FAILED | TOLD) == FAILED:
                n += 1
        return n


cdef void complain(on_error, callback, failure) noexcept:
    """Report with *on_error* that *callback* has raised.

    *on_error* logs it, and a user's logging filter may raise as well: the other callbacks must be
    called all the same.
    """
    on_error(callback, failure)
