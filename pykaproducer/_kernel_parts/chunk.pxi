# The chunk: rows of one topic, in the order of their send(), and their memory.

@cython.final
@cython.no_gc
cdef class Chunk:
    """Rows of one topic, in the order of their ``send()``.

    The garbage collector does not track it. Its references (callbacks, and the caller's objects)
    are released when the rows are reported, not when a cycle is found.
    """

    cdef readonly str topic
    cdef readonly object serial         # number in order of opening, for flush()
    cdef readonly object owner          # the producer's ProducerRef, for handles: see delivery.py
    cdef public bint unconfirmed        # acks=0: delivered only means written to the socket
    cdef TopicSlot origin               # from which it is, or was, taken
    cdef readonly Budget budget
    cdef Account account                # of its topic
    cdef Row *rows
    cdef Block *blocks
    cdef bint refers                    # all its rows refer to the source of the first block
    cdef uint32_t n_sources             # blocks that have a source
    cdef uint32_t n_unused              # of these, freed blocks: their source is to be released
    cdef uint32_t n_spent               # blocks without rows that are pinned, and freed later
    cdef PyObject **callbacks
    cdef readonly list errors
    cdef dict done_callbacks            # row -> [callable]: add_done_callback()
    cdef dict waiters                   # row -> [lock]: result()
    cdef dict failed_payloads           # row -> (key, value) of failed rows that have a handle
    cdef uint32_t count, capacity, callback_room, n_blocks
    cdef uint32_t filling               # the block that takes the next payload, if there is one
    cdef size_t table                   # bytes allocated at `rows`
    cdef uint32_t unreported
    cdef uint32_t n_settled             # rows with an outcome
    cdef readonly Py_ssize_t nbytes     # payload bytes
    cdef int64_t earliest               # deadline, ns
    cdef readonly double opened         # when its first message arrived (monotonic seconds)
    cdef int64_t since_epoch            # ns between the monotonic clock and the epoch
    cdef int64_t timeout                # default delivery timeout of its rows, ns
    cdef uint32_t pins                  # readers that are using the payload now
    cdef uint32_t held                  # live handles
    cdef bint reporting                 # counted by `origin.reporting`
    cdef bint closed, compact
    cdef bint failures                  # a row has failed
    cdef Guard lock

    def __cinit__(self):
        init_guard(&self.lock)
        self.rows = NULL
        self.blocks = NULL
        self.callbacks = NULL
        self.filling = _NO_BLOCK
        self.earliest = 0x7fffffffffffffff

    def __dealloc__(self):
        self.free_payload()
        free_memory(self.rows, self.table)

    def __len__(self):
        return self.count

    @property
    def slot(self):
        """Return the slot from which it is, or was, taken; None once all rows are reported."""
        cdef TopicSlot found
        enter_guard(&self.lock)
        found = self.origin
        leave_guard(&self.lock)
        return found

    @property
    def unsettled(self):
        """Return the number of rows that are not yet settled and reported."""
        cdef uint32_t found
        enter_guard(&self.lock)
        found = self.unreported
        leave_guard(&self.lock)
        return found

    @property
    def is_settled(self):
        """Return whether all rows have an outcome. Only once the chunk has been taken."""
        cdef bint found
        enter_guard(&self.lock)
        found = self.n_settled == self.count
        leave_guard(&self.lock)
        return found

    @property
    def has_waiters(self):
        """Return whether a thread is waiting for one of its rows."""
        return has_waiters(self)

    @property
    def handles(self):
        """Return the number of live handles of its messages."""
        cdef uint32_t found
        enter_guard(&self.lock)
        found = self.held
        leave_guard(&self.lock)
        return found

    @property
    def next_deadline(self):
        """Return the time before which no row expires (monotonic seconds)."""
        cdef int64_t found
        enter_guard(&self.lock)
        found = self.earliest
        leave_guard(&self.lock)
        return found / <double>_NS

    # -- appending (under Admission's guard, and the lock) -------------------------------------

    cdef uint8_t *room(self, Py_ssize_t size) noexcept nogil:
        """Allocate a payload of *size* bytes, in the block that is being filled or a new one."""
        cdef Block *block
        cdef uint32_t capacity
        if self.filling != _NO_BLOCK:
            block = &self.blocks[self.filling]
            if block.capacity - block.used >= size:
                block.used += size
                block.live += 1
                return block.data + block.used - size
            capacity = min(block.capacity * 4, _LARGEST_BLOCK)
        else:
            capacity = _FIRST_BLOCK
        if capacity < size:
            capacity = size
        block = self.new_block(capacity)
        if block == NULL:
            return NULL
        self.filling = self.n_blocks - 1
        block.used = size
        return block.data

    cdef Block *new_block(self, uint32_t capacity) noexcept nogil:
        """Add a block for one row. Return NULL if there is no memory."""
        cdef Block *block
        cdef Block *grown = <Block *>realloc(self.blocks, (self.n_blocks + 1) * sizeof(Block))
        if grown == NULL:
            return NULL
        self.blocks = grown
        block = &grown[self.n_blocks]
        block.data = <uint8_t *>new_memory(capacity)
        if block.data == NULL:
            return NULL
        self.n_blocks += 1
        block.capacity = capacity
        block.used = 0
        block.live = 1
        block.source = NULL
        return block

    cdef bint reserve(self, uint32_t capacity) noexcept nogil:
        """Grow the table to *capacity* rows. Return false if there is no memory."""
        cdef void *grown = grown_memory(self.rows, self.table, capacity * sizeof(Row))
        if grown == NULL:
            return False
        self.rows = <Row *>grown
        self.table = capacity * sizeof(Row)
        self.capacity = capacity
        return True

    cdef Row *new_row(self, bint with_callback) noexcept nogil:
        cdef uint32_t capacity
        cdef void *grown
        if self.count == self.capacity \
                and not self.reserve(min(max(self.capacity * 4, 4), _CHUNK_ROWS)):
            return NULL
        capacity = self.capacity
        if self.callback_room < capacity and (with_callback or self.callbacks != NULL):
            grown = grown_memory(self.callbacks, self.callback_room * sizeof(PyObject *),
                                 capacity * sizeof(PyObject *))
            if grown == NULL:
                return NULL
            self.callbacks = <PyObject **>grown
            memset(self.callbacks + self.callback_room, 0,
                   (capacity - self.callback_room) * sizeof(PyObject *))
            self.callback_room = capacity
        return &self.rows[self.count]

    cdef void trim(self) noexcept nogil:
        """Release the memory after the last row, because no row will be appended any more."""
        cdef Block *last
        self.table = shrunk_memory(self.rows, self.table, self.count * sizeof(Row))
        self.capacity = <uint32_t>(self.table // sizeof(Row))
        if self.filling != _NO_BLOCK:
            last = &self.blocks[self.filling]
            last.capacity = <uint32_t>shrunk_memory(last.data, last.capacity, last.used)
        if self.callbacks != NULL:
            self.callback_room = <uint32_t>(shrunk_memory(
                self.callbacks, self.callback_room * sizeof(PyObject *),
                self.capacity * sizeof(PyObject *)) // sizeof(PyObject *))

    # -- expiry --------------------------------------------------------------------------

    def expired(self, double now):
        """Return slices of the unsettled rows whose deadline is at or before *now*.

        There is one slice per partition (-1: not partitioned yet). ``next_deadline`` advances to
        the earliest remaining row. This does not settle the rows.
        """
        cdef int64_t limit = as_ns(now)
        cdef int64_t earliest = 0x7fffffffffffffff
        cdef uint32_t i, found = 0, count = self.count_if_due(limit)
        cdef Row *row
        cdef uint32_t *hits
        cdef int32_t *places
        cdef dict by_partition = {}
        cdef list slices = []
        if count == 0:
            return slices
        hits = <uint32_t *>new_numbers((count + 1) * sizeof(uint32_t))
        places = <int32_t *>new_numbers((count + 1) * sizeof(int32_t))
        try:
            if hits == NULL or places == NULL:
                raise MemoryError()
            enter_guard(&self.lock)
            for i in range(0 if self.is_done() else count):
                row = &self.rows[i]
                if row.flags & SETTLED:
                    continue
                if row.deadline <= limit:
                    hits[found] = i
                    places[found] = load_partition(&row.partition)
                    found += 1
                elif row.deadline < earliest:
                    earliest = row.deadline
            self.earliest = earliest
            leave_guard(&self.lock)
            for i in range(found):
                by_partition.setdefault(places[i], []).append(hits[i])
            for partition, rows in by_partition.items():
                slices.append(self.pick(rows, partition))
            return slices
        finally:
            free(hits)
            free(places)

    cdef uint32_t count_if_due(self, int64_t limit) noexcept:
        """Return the number of rows; 0 if none can have expired at *limit* (ns)."""
        cdef uint32_t count = 0
        enter_guard(&self.lock)
        if limit >= self.earliest and not self.is_done():
            count = self.count
        leave_guard(&self.lock)
        return count

    def overdue(self, double now):
        """Let ``expired(now)`` return expired rows again, because they could not be settled."""
        enter_guard(&self.lock)
        self.earliest = min(self.earliest, <int64_t>(now * _NS))
        leave_guard(&self.lock)

    def pick(self, rows, int32_t partition=-1):
        """Return a slice of these row numbers; empty once all rows of the chunk are reported.

        Raises IndexError for a row that does not exist.
        """
        cdef Slice part = Slice.__new__(Slice)
        cdef list numbers = list(rows)
        cdef uint32_t i
        part.chunk = self
        part.partition = partition
        part.allocate(len(numbers))
        for i in range(part.count):
            part.rows[i] = self.checked(numbers[i])
        enter_guard(&self.lock)
        if self.is_done():
            part.count = 0
        for i in range(part.count):
            part.nbytes += payload_size(&self.rows[part.rows[i]])
        leave_guard(&self.lock)
        return part

    def whole(self):
        """Return all rows as one unpartitioned slice; empty once all of them are reported."""
        cdef Slice part = Slice.__new__(Slice)
        part.chunk = self
        part.partition = -1
        enter_guard(&self.lock)
        if not self.is_done():
            part.count = self.count
            part.nbytes = self.nbytes
        leave_guard(&self.lock)
        return part

    cdef inline uint32_t checked(self, uint32_t row) except? 0xffffffff:
        """Return *row*, or raise an IndexError if the chunk has no such row."""
        if row >= self.count:
            raise IndexError(f"no row {row} in a chunk of {self.count} rows")
        return row

    # -- partitioning ----------------------------------------------------------------------

    def key(self, uint32_t row):
        """Return a row's key as bytes; None if it has none, or its memory has been released."""
        return self.payload_of(self.checked(row), 0)

    def value(self, uint32_t row):
        """Return a row's value as bytes, or None as for :meth:`key`."""
        return self.payload_of(self.checked(row), 1)

    cdef payload_of(self, uint32_t row, int which):
        cdef const uint8_t *data = NULL
        cdef int32_t size = -1
        cdef bint there
        enter_guard(&self.lock)
        there = not self.is_done() and self.blocks[self.rows[row].block].data != NULL
        if there:
            data = self.rows[row].value if which else self.rows[row].key
            size = self.rows[row].value_size if which else self.rows[row].key_size
            self.pins += 1              # so that the block is not freed while it is read
        leave_guard(&self.lock)
        if not there:
            return None
        try:
            return as_bytes(data, size)
        finally:
            unpin(self)

    def unassigned(self):
        """Return the rows with neither partition nor outcome (for a user's partitioner)."""
        cdef uint32_t i, found = 0, count = self.count
        cdef list rows = []
        cdef uint32_t *hits = <uint32_t *>malloc((count + 1) * sizeof(uint32_t))
        if hits == NULL:
            raise MemoryError()
        enter_guard(&self.lock)
        for i in range(0 if self.is_done() else count):
            if self.rows[i].partition < 0 and not self.rows[i].flags & SETTLED:
                hits[found] = i
                found += 1
        leave_guard(&self.lock)
        try:
            for i in range(found):
                rows.append(hits[i])
            return rows
        finally:
            free(hits)

    def accepted(self):
        """Return when each row was accepted (monotonic seconds).

        For settled rows this is when the chunk was opened.
        """
        cdef list found = []
        cdef uint32_t i
        cdef double when
        for i in range(self.count):
            when = self.opened
            enter_guard(&self.lock)
            if not self.is_done() and not self.rows[i].flags & SETTLED:
                when = accepted_at(self, &self.rows[i]) / <double>_NS
            leave_guard(&self.lock)
            found.append(when)
        return found

    def partition_of(self, uint32_t row):
        """Return the partition of a row, -1 if none has been assigned."""
        return outcome_of(self, self.checked(row)).partition

    def assign(self, uint32_t row, int32_t partition):
        """Assign a partition to one row (for a user's partitioner)."""
        self.checked(row)
        enter_guard(&self.lock)
        if not self.is_done():
            store_partition(&self.rows[row].partition, partition)
        leave_guard(&self.lock)

    def split(self, Partitioner partitioner, int32_t partitions, bytes available not None):
        """Partition every row and return ``(slices, unknown)``.

        *partitions*: the topic's number of partitions. *available*: the partitions with a leader,
        as packed ascending int32; rows without a key go to these. *partitioner*: None if every row
        has been assigned already. *slices*: one Slice per partition, rows in order. *unknown*: a
        Slice of the rows whose partition the topic does not have, or None. Returns ``([], None)``
        once all rows are reported. Runs without the GIL.
        """
        return split_chunk(self, partitioner, partitions, available)

    # -- the end -----------------------------------------------------------------------------

    cdef void free_payload(self) noexcept:
        cdef uint32_t i
        for i in range(self.n_blocks):
            Py_XDECREF(self.blocks[i].source)
        self.free_blocks()
        self.free_callbacks()

    cdef void free_blocks(self) noexcept nogil:
        """Free all blocks. They have no source any more."""
        cdef uint32_t i
        for i in range(self.n_blocks):
            free_block(&self.blocks[i])
        free(self.blocks)
        self.blocks = NULL
        self.n_blocks = 0

    cdef void free_callbacks(self) noexcept:
        cdef uint32_t i
        if self.callbacks != NULL:
            for i in range(self.count):
                Py_XDECREF(self.callbacks[i])
            free_memory(self.callbacks, self.callback_room * sizeof(PyObject *))
            self.callbacks = NULL
            self.callback_room = 0

    cdef inline bint is_done(self) noexcept nogil:
        """Return whether all rows are reported, so the table may be gone. Under the lock."""
        return self.closed and self.unreported == 0


cdef inline Py_ssize_t payload_size(const Row *row) noexcept nogil:
    cdef Py_ssize_t size = row.headers_size
    if row.key_size > 0:
        size += row.key_size
    if row.value_size > 0:
        size += row.value_size
    return size


cdef inline object as_bytes(const uint8_t *data, int32_t size):
    if size < 0:
        return None
    return PyBytes_FromStringAndSize(<const char *>data, size)
