# The slice: rows of one chunk that are processed together. Claimed, settled, reported.

cdef int _forks = 0                     # those of which this process is the child


def count_fork():
    """Record that this process is the child of a fork, to whose parent all messages belong."""
    global _forks
    _forks += 1


@cython.final
@cython.no_gc
cdef class Slice:
    """Rows of one chunk, processed together: ``rows[0..count)``, or a range from ``start``."""

    cdef readonly Chunk chunk
    cdef uint32_t *rows                 # NULL: the range start..start+count
    cdef uint32_t start
    cdef readonly uint32_t count
    cdef readonly int32_t partition
    cdef readonly Py_ssize_t nbytes     # payload bytes
    cdef public int level               # retry level: number of failed attempts
    cdef public int retries_used        # those of them that failed with a retriable broker error
    cdef public uint32_t most           # maximum rows of it in one batch; 0: as many as fit

    def __cinit__(self):
        self.rows = NULL

    def __dealloc__(self):
        free(self.rows)

    def __len__(self):
        return self.count

    @property
    def topic(self):
        """Return the topic of these rows."""
        return self.chunk.topic

    cdef allocate(self, Py_ssize_t count):
        self.rows = <uint32_t *>new_numbers((count + 1) * sizeof(uint32_t))
        if self.rows == NULL:
            raise MemoryError()
        self.count = count

    cdef inline uint32_t at(self, uint32_t i) noexcept nogil:
        return self.rows[i] if self.rows != NULL else self.start + i

    def row_numbers(self):
        """Return the row numbers in the chunk, in order."""
        cdef list rows = []
        for i in range(self.count):
            rows.append(self.at(i))
        return rows

    def waiting(self):
        """Return the number of rows without an outcome."""
        cdef uint32_t i, n = 0
        for i in range(self.count):
            if not flags_of(self.chunk, self.at(i)) & SETTLED:
                n += 1
        return n

    @property
    def is_settled(self):
        """Return whether all of these rows have an outcome. Stops at the first that has none."""
        cdef uint32_t i
        cdef bint settled = True
        enter_guard(&self.chunk.lock)
        for i in range(0 if self.chunk.is_done() else self.count):
            if not self.chunk.rows[self.at(i)].flags & SETTLED:
                settled = False
                break
        leave_guard(&self.chunk.lock)
        return settled

    def oldest_deadline(self):
        """Return the earliest deadline of the unsettled rows (monotonic seconds), or None."""
        cdef int64_t earliest = 0x7fffffffffffffff
        cdef uint32_t i
        cdef Row *row
        enter_guard(&self.chunk.lock)
        for i in range(0 if self.chunk.is_done() else self.count):
            row = &self.chunk.rows[self.at(i)]
            if not row.flags & SETTLED and row.deadline < earliest:
                earliest = row.deadline
        leave_guard(&self.chunk.lock)
        return None if earliest == 0x7fffffffffffffff else earliest / <double>_NS

    # -- sealing ---------------------------------------------------------------------------

    def claim(self, Py_ssize_t room, Py_ssize_t most, bint at_least_one=False):
        """Remove rows from the front for a batch with *room* bytes and *most* rows left.

        Returns a Slice of them, or None if there are none or the first does not fit. With
        *at_least_one* the first row always fits, in a batch by itself if it is too large. Claimed
        rows count as possibly persisted from now on, in case they expire before the batch is
        answered. ``unclaim`` reverts that if the batch is never written. Expired rows are skipped.
        The claimed payload is pinned until ``encode_batch`` has read it.
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
        """Claim rows from the front into *part*. Return the number of rows claimed or expired."""
        cdef uint32_t seen
        cdef Row *row
        cdef Py_ssize_t size
        enter_guard(&chunk.lock)
        if chunk.is_done():
            leave_guard(&chunk.lock)
            return self.count               # all of them expired, and the table is freed
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
        leave_guard(&chunk.lock)
        return seen

    cdef void drop_front(self, uint32_t seen) noexcept:
        """Remove the first *seen* rows from this slice."""
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

    def mark_ambiguous(self):
        """Mark these rows as possibly appended, so that any later failure reports it."""
        self.change_flags(0xff, POSSIBLY)

    def unclaim(self):
        """Revert ``claim``, because the batch with these rows was not appended."""
        self.change_flags(0xff - CLAIMED, 0)

    cdef void change_flags(self, uint8_t kept, uint8_t added) noexcept:
        """Keep the flags *kept* of the rows without an outcome, and add *added*."""
        cdef uint32_t i
        cdef Row *row
        enter_guard(&self.chunk.lock)
        for i in range(0 if self.chunk.is_done() else self.count):
            row = &self.chunk.rows[self.at(i)]
            if not row.flags & SETTLED:
                row.flags = row.flags & kept | added
        leave_guard(&self.chunk.lock)

    # -- waiting -----------------------------------------------------------------------------

    def detach_payload(self):
        """Copy the payload of these rows out of memory shared with other rows.

        That may be memory of the caller; but each large value of ``send()`` stays where it is.

        For a slice that has to wait long, so that one unavailable partition does not pin the memory
        of the others. None of its rows may be being encoded. The row table is not copied: it
        belongs to the chunk, and is freed with its last row.
        """
        detach_rows(self.chunk, self)
        release_sources(self.chunk)
        self.chunk.budget.wake()

    # -- settling: each row once -------------------------------------------------------------

    def deliver(self, int64_t base_offset, int64_t timestamp=-1, *, bint wake=True,
                SampledStat latency=None, double now=0):
        """Settle these rows as delivered, from *base_offset* on (-1: offsets unknown).

        *timestamp*: the broker's timestamp in ms if the topic uses LogAppendTime, else -1. *wake*:
        wake the threads that wait for one of the rows; if false, the caller must call
        ``wake_waiters`` of the returned Slice. *latency*: records the age of each row at *now*
        (monotonic seconds). Returns a Slice of the rows that this call settled, to be passed to
        ``report``: this one if it settled all of them, None if it settled none. An expired row
        keeps its earlier outcome.
        """
        cdef Delivering delivering
        cdef Slice settled
        begin_delivering(&delivering, timestamp, now)
        settled = deliver_part(self, base_offset, &delivering, latency)
        end_run(latency, &delivering.run)
        if settled is not None and wake:
            settled.wake_waiters()
        return settled

    def fail(self, not_persisted, possibly_persisted, *, bint wake=True):
        """Settle these rows as failed.

        A row's error is *possibly_persisted* if an attempt may have been appended to the log, else
        *not_persisted*. *wake* and the return value: as for ``deliver``.
        """
        cdef Chunk chunk = self.chunk
        cdef Slice settled
        cdef list errors = chunk.errors
        cdef Py_ssize_t first
        settled = self.empty_part()
        enter_guard(&chunk.lock)
        try:
            first = len(errors)
            errors.append(not_persisted)
            errors.append(possibly_persisted)
            # From here on nothing raises. Drop error objects that no row uses, so that per-row
            # failures, and failures of rows that are settled already, cannot exhaust the 16 bits of
            # Row.error.
            if not fail_part(self, settled, first):
                errors.pop()            # needs no memory, as `del` of a part of the list would
                if not settled.count:
                    errors.pop()
        finally:
            leave_guard(&chunk.lock)
        return self.settled_part(settled, wake)

    cdef Slice empty_part(self):
        """Return an empty slice with room for all of these rows.

        A broker's response cannot be handled twice. Without memory the new slice therefore shares
        the array of this slice, in which each row number is read before it is overwritten. Then
        :meth:`settled_part` empties this slice.
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
        """Compute the payload size of *settled*, the rows of this slice that were just settled."""
        cdef uint32_t i
        if settled.count == self.count:
            settled.nbytes = self.nbytes
            return
        for i in range(settled.count):
            settled.nbytes += payload_size(&self.chunk.rows[settled.at(i)])

    cdef Slice settled_part(self, Slice settled, bint wake):
        """Wake waiting threads if *wake*. Return *settled*, or None if it has no row."""
        if settled.rows == self.rows:
            self.rows = NULL        # *settled* owns it now
            self.count = 0
            self.nbytes = 0
        if not settled.count:
            return None
        if wake:
            settled.wake_waiters()
        return settled

    def wake_waiters(self):
        """Wake the threads that wait for one of these settled rows."""
        if has_waiters(self.chunk):
            wake_waiters(self)

    # -- reporting -----------------------------------------------------------------------------

    @property
    def wants_report(self):
        """Return whether any row of the chunk may have a callback to run."""
        return has_callbacks(self.chunk)

    def report(self, on_error):
        """Run the callbacks of these settled rows, then release their memory.

        If a callback raises, ``on_error(callback, exception)`` is called. An exception raised by
        ``on_error`` goes to ``sys.unraisablehook``. Returns True if these were the last rows of the
        chunk. Raises MemoryError, and may then be called again: it calls the rest.
        """
        cdef Chunk chunk = self.chunk
        cdef uint32_t i, row
        cdef int forks = _forks
        cdef object callback, error, handle
        cdef list functions
        cdef Py_ssize_t j
        for i in range(self.count):
            if forks != _forks:
                return False            # the one before has forked, and this is the child
            row = self.at(i)
            if chunk.callbacks != NULL and chunk.callbacks[row] != NULL:
                callback = <object>chunk.callbacks[row]
                error = error_of(chunk, row) if observe(chunk, row) & FAILED else None
                handle = None if type(callback) is ReportTo else new_handle(chunk, row)
                Py_DECREF(callback)     # not before there is all that its call needs
                chunk.callbacks[row] = NULL
                try:
                    if handle is None:
                        (<ReportTo>callback).receive(chunk, row, error)
                    else:
                        callback(error, handle)
                except BaseException as failure:
                    report_callback_error(on_error, callback, failure)
                callback = handle = error = None
            if has_done_callbacks(chunk):
                handle = new_handle(chunk, row)
                functions = taken(chunk, chunk.done_callbacks, row)
                for j in range(1, 0 if functions is None else len(functions)):
                    callback = functions[j]
                    try:
                        callback(handle)
                    except BaseException as failure:
                        report_callback_error(on_error, callback, failure)
                    if forks != _forks:
                        break
                callback = handle = functions = None
            if i & (_ROWS_A_LOOK - 1) == _ROWS_A_LOOK - 1 and gil_is_wanted():
                let_stages_run()
        return forks == _forks and self.finish()

    cpdef finish(self):
        """Release the memory of these reported rows. Return True if they were the chunk's last."""
        cdef Chunk chunk = self.chunk
        cdef uint32_t i = next_to_keep(self, 0)
        cdef bint last
        while i < self.count:
            self.keep(self.at(i))
            i = next_to_keep(self, i + 1)
        last = let_go(chunk, self)
        if last:
            chunk.free_callbacks()
            release_rows(chunk)
        release_sources(chunk)
        chunk.budget.wake()
        return last

    cdef keep(self, uint32_t row):
        # The payload of a failed message is kept for its handles, so that it can be sent again.
        cdef Chunk chunk = self.chunk
        cdef Row *r = &chunk.rows[row]
        # Not yet reported, so its payload is still there.
        number = row
        # With the number, the key of the dict: so that is freed with the tuple.
        cdef tuple payload = (as_bytes(r.key, r.key_size), as_bytes(r.value, r.value_size), number)
        # Creating a dict may run finalizers that do the same, so check again afterwards.
        cdef dict fresh = {}
        enter_guard(&chunk.lock)
        try:
            if chunk.failed_payloads is None:
                chunk.failed_payloads = fresh
            if r.handle_count:          # the last handle would not remove it any more
                chunk.failed_payloads[number] = payload
        finally:
            leave_guard(&chunk.lock)

    def first_error(self):
        """Return the error of the first row that failed, or None if none did."""
        cdef uint32_t i
        for i in range(self.count):
            if flags_of(self.chunk, self.at(i)) & FAILED:
                return error_of(self.chunk, self.at(i))
        return None

    def unreported_failures(self):
        """Return the number of failed rows without a callback whose outcome was never read."""
        cdef uint32_t i, n = 0
        if not has_failures(self.chunk):
            return 0
        for i in range(self.count):
            if flags_of(self.chunk, self.at(i)) & (FAILED | OBSERVED) == FAILED:
                n += 1
        return n


cdef void report_callback_error(on_error, callback, failure) noexcept:
    """Call *on_error* because *callback* has raised.

    *on_error* logs the exception, and a user's logging filter may raise as well. The other
    callbacks must be called all the same.
    """
    on_error(callback, failure)
