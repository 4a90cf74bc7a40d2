# The bytes of buffer_memory, and the chunk: rows of one topic and their memory.

@cython.final
cdef class Budget:
    """The bytes of ``buffer_memory``: reserved at admission, given back as rows are reported.

    Guarantees: ``used`` never exceeds ``limit``. Whoever waits for space is woken after every
    release and looks again (waking only one loses a wake-up when that one gives up). One atomic
    number; no lock.
    """

    cdef readonly int64_t limit
    cdef int64_t reserved
    cdef public object on_release       # called after a release, when somebody waits
    cdef public bint wanted

    def __init__(self, int64_t limit):
        self.limit = limit

    @property
    def used(self):
        """Bytes that are reserved at this moment."""
        return atomic_add(&self.reserved, 0)

    def fits(self, int64_t amount):
        """Whether *amount* bytes are free at this moment."""
        return amount <= self.limit - atomic_add(&self.reserved, 0)

    cdef inline bint take(self, int64_t amount) noexcept nogil:
        return atomic_add_below(&self.reserved, amount, self.limit)

    cdef inline void give_back(self, int64_t amount) noexcept nogil:
        atomic_add(&self.reserved, -amount)

    cdef wake(self):
        if self.wanted and self.on_release is not None:
            self.on_release()


@cython.final
@cython.no_gc
cdef class Chunk:
    """Rows of one topic, in the order of their ``send()``. Not seen by the garbage collector:
    what it refers to (callbacks) is let go when the rows are reported, not when a cycle is found.
    """

    cdef readonly str topic
    cdef readonly object serial         # number in order of opening, for flush()
    cdef readonly object home           # delivery.Home of the producer
    cdef public bint unconfirmed        # acks=0: delivered means written, no more
    cdef Budget budget
    cdef Row *rows
    cdef Block *blocks
    cdef PyObject **callbacks
    cdef readonly list errors
    cdef dict extras                    # row -> [callable]: add_done_callback()
    cdef dict waiters                   # row -> [lock]: result()
    cdef dict kept                      # row -> (key, value, headers) of failed rows
    cdef uint32_t count, capacity, n_blocks
    cdef uint32_t unreported
    cdef readonly Py_ssize_t nbytes     # payload bytes
    cdef int64_t earliest               # deadline, ns
    cdef readonly double opened         # when its first message came (monotonic seconds)
    cdef int64_t since_epoch            # ns between the monotonic clock and the epoch
    cdef uint32_t pins                  # encoders that read the payload at this moment
    cdef uint32_t held                  # handles that are alive
    cdef bint closed, compact
    cdef bint failures                  # a row has failed
    cdef cython.pymutex lock

    def __cinit__(self):
        self.rows = NULL
        self.blocks = NULL
        self.callbacks = NULL
        self.earliest = 0x7fffffffffffffff

    def __dealloc__(self):
        self.free_payload()
        free(self.rows)

    def __len__(self):
        return self.count

    @property
    def unsettled(self):
        """Rows that are not yet settled and reported."""
        return self.unreported

    @property
    def handles(self):
        """How many handles of its messages are alive."""
        return self.held

    @property
    def next_deadline(self):
        """Seconds on the monotonic clock: no row expires before this."""
        return self.earliest / <double>_NS

    # -- appending (under Admission's mutex) ---------------------------------------------

    cdef uint8_t *room(self, Py_ssize_t size) noexcept:
        """Memory for one payload of *size* bytes, in the last block or a new one."""
        cdef Block *block
        cdef Block *grown
        cdef uint32_t capacity
        if self.n_blocks:
            block = &self.blocks[self.n_blocks - 1]
            if block.capacity - block.used >= size:
                block.used += size
                block.live += 1
                return block.data + block.used - size
            capacity = min(block.capacity * 4, _LARGEST_BLOCK)
        else:
            capacity = _FIRST_BLOCK
        if capacity < size:
            capacity = size
        grown = <Block *>realloc(self.blocks, (self.n_blocks + 1) * sizeof(Block))
        if grown == NULL:
            return NULL
        self.blocks = grown
        block = &grown[self.n_blocks]
        block.data = <uint8_t *>malloc(capacity if capacity else 1)
        if block.data == NULL:
            return NULL
        self.n_blocks += 1
        block.capacity = capacity
        block.used = size
        block.live = 1
        return block.data

    cdef Row *new_row(self, bint with_callback) noexcept:
        cdef uint32_t capacity
        cdef Row *rows
        cdef PyObject **callbacks
        if self.count == self.capacity:
            capacity = max(self.capacity * 4, 4)
            rows = <Row *>realloc(self.rows, capacity * sizeof(Row))
            if rows == NULL:
                return NULL
            self.rows = rows
            if self.callbacks != NULL:
                callbacks = <PyObject **>realloc(self.callbacks, capacity * sizeof(PyObject *))
                if callbacks == NULL:
                    return NULL
                memset(callbacks + self.capacity, 0,
                       (capacity - self.capacity) * sizeof(PyObject *))
                self.callbacks = callbacks
            self.capacity = capacity
        if with_callback and self.callbacks == NULL:
            self.callbacks = <PyObject **>calloc(self.capacity, sizeof(PyObject *))
            if self.callbacks == NULL:
                return NULL
        return &self.rows[self.count]

    # -- waiting -------------------------------------------------------------------------

    cdef void move_out(self, Slice part) noexcept nogil:
        """Move the payload of *part* out of the blocks that it shares; see Slice.take_along.

        Whoever reads a payload at this moment has pinned it: an old block is freed later then.
        Without memory, or with as many blocks as a row can name, everything stays as it is.
        """
        cdef uint32_t *shared = NULL
        cdef Block *grown
        cdef Py_ssize_t size, freed = 0
        with self.lock:
            if not self.over() and self.n_blocks < 0xffff:
                shared = <uint32_t *>calloc(self.n_blocks + 1, sizeof(uint32_t))
            if shared != NULL:
                size = self.find_shared(part, shared)
                grown = <Block *>realloc(self.blocks, (self.n_blocks + 1) * sizeof(Block))
                if grown != NULL:
                    self.blocks = grown
                    if size >= 0:
                        freed = self.move_into_last(part, shared, size)
        free(shared)
        if freed:
            self.budget.give_back(freed)

    cdef Py_ssize_t find_shared(self, Slice part, uint32_t *shared) noexcept nogil:
        """Set *shared* by block: not 0 where *part* lies, and holds up a quarter more than it has.

        Returns the payload bytes of *part* in these blocks; -1 if there is no such block.
        """
        cdef uint32_t i
        cdef Row *row
        cdef Py_ssize_t size = 0
        cdef bint found = False
        for i in range(part.count):
            row = &self.rows[part.at(i)]
            if not row.flags & SETTLED:
                # One more than the bytes: 0 stands for none of its rows.
                shared[row.block] += <uint32_t>payload_size(row) + (shared[row.block] == 0)
        for i in range(self.n_blocks):
            if shared[i] and self.blocks[i].used <= <int64_t>(shared[i] - 1) * 5 // 4:
                shared[i] = 0
        for i in range(part.count):
            row = &self.rows[part.at(i)]
            if not row.flags & SETTLED and shared[row.block]:
                size += payload_size(row)
                found = True
        return size if found else -1

    cdef Py_ssize_t move_into_last(self, Slice part, const uint32_t *shared,
                                   Py_ssize_t size) noexcept nogil:
        """Move the payload of *part* in *shared* blocks to a new one; the bytes that this frees.

        A payload is counted where it lies from now on: once, although an old block keeps a copy
        of it until its other rows are through.
        """
        cdef Block *target = &self.blocks[self.n_blocks]
        cdef Block *source
        cdef uint8_t *p = <uint8_t *>malloc(size if size else 1)
        cdef uint32_t i
        cdef Py_ssize_t length, freed = 0
        cdef Row *row
        if p == NULL:
            return 0
        target.data = p
        target.capacity = target.used = <uint32_t>size
        target.live = 0
        for i in range(part.count):
            row = &self.rows[part.at(i)]
            if row.flags & SETTLED or not shared[row.block]:
                continue
            source = &self.blocks[row.block]
            length = payload_size(row)
            memcpy(p, row.key, length)          # key, value and headers lie side by side
            row.value = p + (row.value - row.key)
            row.headers = p + (row.headers - row.key)
            row.key = p
            p += length
            row.block = <uint16_t>self.n_blocks
            source.used -= <uint32_t>length
            source.live -= 1
            target.live += 1
            if source.live == 0 and self.pins == 0:
                freed += source.used
                free(source.data)
                source.data = NULL
                source.used = 0
        self.n_blocks += 1
        return freed

    # -- expiry --------------------------------------------------------------------------

    def expired(self, double now):
        """Slices of the rows whose deadline has come and that have no outcome yet.

        One slice a partition (-1: not partitioned yet). ``next_deadline`` moves on to the
        earliest row that is left. The rows are not settled by this.
        """
        cdef int64_t limit = <int64_t>(now * _NS)
        cdef int64_t earliest = 0x7fffffffffffffff
        cdef uint32_t i, found = 0
        cdef Row *row
        cdef uint32_t *hits
        cdef int32_t *places
        cdef dict by_partition = {}
        if limit < self.earliest or self.over():
            return []
        hits = <uint32_t *>malloc((self.count + 1) * sizeof(uint32_t))
        places = <int32_t *>malloc((self.count + 1) * sizeof(int32_t))
        try:
            if hits == NULL or places == NULL:
                raise MemoryError()
            with nogil:
                with self.lock:
                    for i in range(0 if self.over() else self.count):
                        row = &self.rows[i]
                        if row.flags & SETTLED:
                            continue
                        if row.deadline <= limit:
                            hits[found] = i
                            places[found] = row.partition
                            found += 1
                        elif row.deadline < earliest:
                            earliest = row.deadline
                    self.earliest = earliest
            for i in range(found):
                by_partition.setdefault(places[i], []).append(hits[i])
        finally:
            free(hits)
            free(places)
        return [self.pick(rows, partition) for partition, rows in by_partition.items()]

    def pick(self, rows, int32_t partition=-1):
        """A slice of just these row numbers; empty once all rows of the chunk are reported."""
        cdef Slice part = Slice.__new__(Slice)
        cdef uint32_t i
        part.chunk = self
        part.partition = partition
        part.allocate(len(rows))
        for i in range(part.count):
            part.rows[i] = rows[i]
        with self.lock:
            if self.over():
                part.count = 0
            for i in range(part.count):
                part.nbytes += payload_size(&self.rows[part.rows[i]])
        return part

    def whole(self):
        """All rows as one slice, not partitioned; empty once all of them are reported."""
        cdef Slice part = Slice.__new__(Slice)
        part.chunk = self
        part.partition = -1
        if not self.over():
            part.count = self.count
            part.nbytes = self.nbytes
        return part

    # -- partitioning ----------------------------------------------------------------------

    def key(self, uint32_t row):
        """Key of a row as bytes; None if it has none, or its memory has been let go."""
        return self.payload_of(row, 0)

    def value(self, uint32_t row):
        """Value of a row as bytes, or None, as for :meth:`key`."""
        return self.payload_of(row, 1)

    cdef payload_of(self, uint32_t row, int which):
        cdef const uint8_t *data
        cdef int32_t size
        with self.lock:                 # pinned: the block cannot be freed under our hands
            if self.over() or self.blocks[self.rows[row].block].data == NULL:
                return None
            data = self.rows[row].value if which else self.rows[row].key
            size = self.rows[row].value_size if which else self.rows[row].key_size
            self.pins += 1
        try:
            return as_bytes(data, size)
        finally:
            self.unpin()

    def unassigned(self):
        """Rows that have neither partition nor outcome yet (for a user's partitioner)."""
        cdef uint32_t i, found = 0
        cdef uint32_t *hits = <uint32_t *>malloc((self.count + 1) * sizeof(uint32_t))
        if hits == NULL:
            raise MemoryError()
        with self.lock:
            for i in range(0 if self.over() else self.count):
                if self.rows[i].partition < 0 and not self.rows[i].flags & SETTLED:
                    hits[found] = i
                    found += 1
        try:
            return [hits[i] for i in range(found)]
        finally:
            free(hits)

    def partition_of(self, uint32_t row):
        """The partition that a row was given, -1 for none."""
        return self.outcome_of(row).partition

    def assign(self, uint32_t row, int32_t partition):
        """Give one row its partition (for a user's partitioner)."""
        with self.lock:
            if not self.over():
                self.rows[row].partition = partition

    def split(self, Partitioner partitioner, int32_t partitions, bytes available):
        """Partition every row; ``(slices, strays)``.

        *partitions*: how many the topic has. *available*: numbers of those with a leader, as
        packed int32: rows without a key go to these. *partitioner* None: every row has been
        assigned by hand. *slices*: one Slice a partition, rows in order. *strays*: a Slice of the
        rows whose partition the topic does not have, or None. Neither, once all rows are
        reported. Runs without the GIL.
        """
        cdef const int32_t *writable = <const int32_t *>PyBytes_AS_STRING(available)
        cdef int32_t n_writable = len(available) // sizeof(int32_t)
        cdef uint32_t *counts = NULL
        cdef int64_t *sizes = NULL
        cdef int32_t *used = NULL
        cdef int32_t n_used = 0, p
        cdef uint32_t i
        cdef Row *row
        cdef Slice part
        cdef list parts = []
        cdef Slice strays = None
        with self.lock:                 # pinned: the row table stays while its rows expire
            if self.over():
                return [], None
            self.pins += 1
        try:
            counts = <uint32_t *>calloc(partitions + 1, sizeof(uint32_t))
            sizes = <int64_t *>calloc(partitions + 1, sizeof(int64_t))
            used = <int32_t *>malloc((min(<int64_t>partitions, <int64_t>self.count) + 2)
                                     * sizeof(int32_t))
            if counts == NULL or sizes == NULL or used == NULL:
                raise MemoryError()
            if partitioner is not None:
                partitioner.look_at(writable, n_writable)
            with nogil:
                for i in range(self.count):
                    row = &self.rows[i]
                    p = row.partition
                    if p < 0 and partitioner is not None:
                        p = partitioner.choose(row, partitions, writable, n_writable)
                        row.partition = p
                    if p < 0 or p >= partitions:
                        p = partitions          # the place of the strays
                    if counts[p] == 0:
                        used[n_used] = p
                        n_used += 1
                    counts[p] += 1
                    sizes[p] += payload_size(row)
            if n_used == 1:
                part = self.whole()
                part.partition = used[0]
                if used[0] == partitions:
                    return [], part
                return [part], None
            for i in range(<uint32_t>n_used):
                part = Slice.__new__(Slice)
                part.chunk = self
                part.partition = used[i]
                part.allocate(counts[used[i]])
                part.nbytes = sizes[used[i]]
                part.count = 0
                counts[used[i]] = i             # from now on: which slice
                parts.append(part)
            for i in range(self.count):
                p = self.rows[i].partition
                if p < 0 or p >= partitions:
                    p = partitions
                part = <Slice>parts[counts[p]]
                part.rows[part.count] = i
                part.count += 1
        finally:
            free(counts)
            free(sizes)
            free(used)
            self.unpin()
        for part in parts:
            if part.partition == partitions:
                strays = part
        if strays is not None:
            parts.remove(strays)
        return parts, strays

    # -- the end -----------------------------------------------------------------------------

    cdef void free_payload(self) noexcept:
        cdef uint32_t i
        for i in range(self.n_blocks):
            free(self.blocks[i].data)
        free(self.blocks)
        self.blocks = NULL
        self.n_blocks = 0
        self.free_callbacks()

    cdef void free_callbacks(self) noexcept:
        cdef uint32_t i
        if self.callbacks != NULL:
            for i in range(self.count):
                Py_XDECREF(self.callbacks[i])
            free(self.callbacks)
            self.callbacks = NULL

    cdef bint let_go(self, Slice part) noexcept nogil:
        """Count *part*'s rows as reported, and give back what that frees; true for the last."""
        cdef uint32_t i
        cdef Py_ssize_t freed = 0
        cdef bint last
        cdef Block *block
        cdef Row *row
        with self.lock:
            for i in range(part.count):
                row = &self.rows[part.at(i)]
                block = &self.blocks[row.block]
                block.live -= 1
                if block.live == 0 and self.pins == 0 and self.closed:
                    freed += block.used
                    free(block.data)
                    block.data = NULL
                    block.used = 0
            self.unreported -= part.count
            last = self.unreported == 0
            if last:
                freed += self.count * _ROW_COST
        self.budget.give_back(freed)
        return last

    cdef unpin(self):
        """A reader is through; free what became free while it read."""
        cdef uint32_t i
        cdef Py_ssize_t freed = 0
        with self.lock:
            self.pins -= 1
            if self.pins == 0 and self.closed:
                for i in range(self.n_blocks):
                    if self.blocks[i].live == 0 and self.blocks[i].data != NULL:
                        freed += self.blocks[i].used
                        free(self.blocks[i].data)
                        self.blocks[i].data = NULL
                        self.blocks[i].used = 0
        if self.over():
            self.retire()
        if freed:
            self.budget.give_back(freed)
            self.budget.wake()

    # The row table is in one of three states. Open or under way: Rows. Every row reported, and
    # handles or errors left: Outcomes (`compact`). Every row reported and nobody left to ask:
    # none. Whoever walks over Rows does so under the lock, and asks `over()` first, or has
    # pinned the chunk. A handle looks at its one row with the GIL alone, so the table changes
    # state with the GIL and under the lock.

    cdef inline bint over(self) noexcept nogil:
        return self.closed and self.unreported == 0

    cdef retire(self):
        """Once every row is reported and nobody reads: keep what handles need, or nothing."""
        with self.lock:
            if self.pins or not self.over() or self.compact or self.rows == NULL:
                return
            if self.held or self.failures:
                self.compress()
            else:
                free(self.rows)
                self.rows = NULL

    cdef void compress(self) noexcept nogil:
        """32 of a row's 64 bytes are enough for the handles that are kept."""
        cdef Outcome *outcomes = <Outcome *>self.rows
        cdef Outcome outcome
        cdef Row *row
        cdef void *smaller
        cdef uint32_t i
        for i in range(self.count):
            row = &self.rows[i]
            outcome.timestamp = row.timestamp
            outcome.offset = row.deadline
            outcome.key_size = row.key_size
            outcome.value_size = row.value_size
            outcome.partition = row.partition
            outcome.error = row.error
            outcome.flags = row.flags
            outcome.holders = row.holders
            outcomes[i] = outcome
        self.compact = True
        smaller = realloc(self.rows, self.count * sizeof(Outcome))
        if smaller != NULL:
            self.rows = <Row *>smaller

    cdef uint8_t *flags_at(self, uint32_t row) noexcept nogil:
        if self.compact:
            return &(<Outcome *>self.rows)[row].flags
        return &self.rows[row].flags

    cdef uint8_t *holders_at(self, uint32_t row) noexcept nogil:
        if self.compact:
            return &(<Outcome *>self.rows)[row].holders
        return &self.rows[row].holders

    cdef uint8_t flags_of(self, uint32_t row) noexcept:
        if self.rows == NULL:
            return SETTLED              # delivered, reported, and no handle is left
        return load_flags(self.flags_at(row))

    cdef Outcome outcome_of(self, uint32_t row) noexcept:
        cdef Outcome outcome
        cdef Row *r
        if self.rows == NULL:
            memset(&outcome, 0, sizeof(Outcome))
            outcome.partition = -1
            outcome.flags = SETTLED
            return outcome
        if self.compact:
            return (<Outcome *>self.rows)[row]
        r = &self.rows[row]
        outcome.flags = load_flags(&r.flags)
        outcome.timestamp = r.timestamp
        outcome.offset = r.deadline if outcome.flags & SETTLED else -1
        outcome.key_size = r.key_size
        outcome.value_size = r.value_size
        outcome.partition = r.partition
        outcome.error = r.error
        outcome.holders = r.holders
        return outcome

    # -- what handles ask ----------------------------------------------------------------------

    cdef bint add_waiter(self, uint32_t row, lock) except -1:
        """False if the row is settled already; else *lock* is released when it is.

        No lock is needed. The settler (1) sets the flag, (2) looks for waiters; we (1) enter the
        waiter, (2) look at the flag. Whatever the order, one of the two sees the other.
        """
        if self.waiters is None:
            self.waiters = {}
        self.waiters.setdefault(row, []).append(lock)
        if self.flags_of(row) & SETTLED:
            self.drop_waiter(row, lock)
            return False
        return True

    cdef drop_waiter(self, uint32_t row, lock):
        locks = self.waiters.get(row)
        if locks and lock in locks:
            locks.remove(lock)
            if not locks:
                self.waiters.pop(row, None)

    cdef wake_waiters(self):
        """Release the locks of those who wait for rows that are settled by now."""
        for row in list(self.waiters):
            if self.flags_of(<uint32_t>row) & SETTLED:
                for lock in self.waiters.pop(row, ()):
                    lock.release()

    cdef bint add_extra(self, uint32_t row, function) except -1:
        """False if the row is settled already: then the caller runs *function* itself.

        The same two-step as add_waiter: enter, then look. When both sides saw each other, the one
        that takes the entry out of the table runs it.
        """
        if self.extras is None:
            self.extras = {}
        self.extras.setdefault(row, []).append(function)
        if self.flags_of(row) & SETTLED:
            functions = self.extras.get(row)
            if functions is not None and function in functions:
                functions.remove(function)
                return False
        return True


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
