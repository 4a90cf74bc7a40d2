# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, binding=True, embedsignature=False
"""The compiled hot path: rows in columnar chunks, partitioned, encoded and settled in C.

A message is a *row*: one fixed-size ``Row`` in its chunk's table, its key, value and encoded
headers side by side in one of the chunk's *blocks* of memory. Nothing here is a Python object
per message but the handle that ``send()`` returns, and that one is invisible to the cyclic
garbage collector (a million tracked objects, walked again and again, were the largest cost of
an earlier prototype).

What a row goes through:

1. ``Admission.send`` reserves its bytes in the ``Budget`` and appends it to its topic's open
   ``Chunk``.
2. The dispatcher takes the chunk from its ``TopicSlot``; ``Chunk.split`` partitions it and
   gives one ``Slice`` (chunk + row numbers) per partition.
3. ``encode_batch`` writes slices as one record batch of message format v2.
4. ``Slice.deliver`` or ``Slice.fail`` settles rows, each once; ``Slice.report`` runs the
   callbacks; the chunk's memory goes when its last row is settled and reported.

Locks. One mutex in ``Admission`` guards the open chunks and the topic slots, one in each
``Chunk`` the flags of its rows. Neither is ever held while Python code runs, and never both.
With the GIL they are free when uncontended; without it the code stays right.

This module imports nothing of the package.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

cdef extern from "Python.h":
    int _PyBytes_Resize(PyObject **string, Py_ssize_t newsize) except -1
    PyObject *new_bytes "PyBytes_FromStringAndSize"(const char *data, Py_ssize_t size) except NULL
    uint8_t *bytes_data "(uint8_t *)PyBytes_AS_STRING"(PyObject *o) nogil
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    bint PyBytes_CheckExact(object o)
    bint PyLong_CheckExact(object o)

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    #include <time.h>

    /* The clock that Python's time.monotonic() reads. */
    #ifdef __APPLE__
    #define KAFKA_MONOTONIC CLOCK_UPTIME_RAW
    #else
    #define KAFKA_MONOTONIC CLOCK_MONOTONIC
    #endif
    static inline int64_t kernel_clock(int which) {
        struct timespec t;
        clock_gettime(which ? CLOCK_REALTIME : KAFKA_MONOTONIC, &t);
        return (int64_t)t.tv_sec * 1000000000LL + t.tv_nsec;
    }

    /* Zigzag varints, as the record format of KIP-98 writes every length and delta. */
    static inline uint64_t zigzag(int64_t n) { return ((uint64_t)n << 1) ^ (uint64_t)(n >> 63); }
    static inline int varint_size(int64_t n) {
        uint64_t z = zigzag(n);
        int size = 1;
        while (z >= 0x80) { z >>= 7; size++; }
        return size;
    }
    static inline uint8_t *put_varint(uint8_t *p, int64_t n) {
        uint64_t z = zigzag(n);
        while (z >= 0x80) { *p++ = (uint8_t)(z | 0x80); z >>= 7; }
        *p++ = (uint8_t)z;
        return p;
    }
    static inline void put_be16(uint8_t *p, uint16_t v) { p[0] = v >> 8; p[1] = v & 0xff; }
    static inline void put_be32(uint8_t *p, uint32_t v) {
        p[0] = v >> 24; p[1] = (v >> 16) & 0xff; p[2] = (v >> 8) & 0xff; p[3] = v & 0xff;
    }
    static inline void put_be64(uint8_t *p, uint64_t v) {
        put_be32(p, (uint32_t)(v >> 32)); put_be32(p + 4, (uint32_t)v);
    }

    /* Kafka's murmur2 (the Java client's Utils.murmur2), seed 0x9747b28c. */
    static uint32_t kafka_murmur2(const uint8_t *data, int32_t length) {
        const uint32_t m = 0x5bd1e995;
        uint32_t h = 0x9747b28cu ^ (uint32_t)length;
        int32_t left = length;
        while (left >= 4) {
            uint32_t k = (uint32_t)data[0] | (uint32_t)data[1] << 8
                       | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24;
            k *= m; k ^= k >> 24; k *= m;
            h *= m; h ^= k;
            data += 4; left -= 4;
        }
        switch (left) {
            case 3: h ^= (uint32_t)data[2] << 16; /* fall through */
            case 2: h ^= (uint32_t)data[1] << 8;  /* fall through */
            case 1: h ^= (uint32_t)data[0]; h *= m;
        }
        h ^= h >> 13; h *= m; h ^= h >> 15;
        return h;
    }
    /* CRC-32 (IEEE 802.3), as librdkafka's consistent partitioners use it. */
    static uint32_t kafka_crc32(const uint8_t *data, int32_t length) {
        uint32_t crc = 0xffffffffu;
        for (int32_t i = 0; i < length; i++) {
            crc ^= data[i];
            for (int bit = 0; bit < 8; bit++)
                crc = (crc >> 1) ^ (0xedb88320u & (0u - (crc & 1)));
        }
        return ~crc;
    }
    /* FNV-1a, 32 bits, as Sarama's hash partitioner uses it. */
    static uint32_t kafka_fnv1a(const uint8_t *data, int32_t length) {
        uint32_t h = 0x811c9dc5u;
        for (int32_t i = 0; i < length; i++) { h ^= data[i]; h *= 0x01000193u; }
        return h;
    }
    /* A handle is born (+1) or dies (-1): how many hold its row now. Handles die in any thread. */
    static inline int hold(uint32_t *held, uint8_t *holders, int change) {
        __atomic_fetch_add(held, (uint32_t)change, __ATOMIC_RELAXED);
        if (__atomic_load_n(holders, __ATOMIC_RELAXED) == 255) return 255;
        return (uint8_t)__atomic_add_fetch(holders, (uint8_t)change, __ATOMIC_RELAXED);
    }
    static inline int64_t atomic_add(int64_t *n, int64_t change) {
        return __atomic_fetch_add(n, change, __ATOMIC_SEQ_CST);
    }
    /* Adds unless the sum would exceed the limit: nobody ever sees more than that. */
    static inline int atomic_add_below(int64_t *n, int64_t change, int64_t limit) {
        int64_t seen = __atomic_load_n(n, __ATOMIC_SEQ_CST);
        do {
            if (change > limit - seen) return 0;
        } while (!__atomic_compare_exchange_n(n, &seen, seen + change, 1,
                                              __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
        return 1;
    }
    /* A row's flags say that its outcome is there: written last, read first. */
    static inline uint8_t load_flags(const uint8_t *flags) {
        return __atomic_load_n(flags, __ATOMIC_ACQUIRE);
    }
    static inline void add_flags(uint8_t *flags, uint8_t more) {
        __atomic_store_n(flags, (uint8_t)(*flags | more), __ATOMIC_RELEASE);
    }
    static inline uint64_t next_random(uint64_t *state) {  /* xorshift64* */
        uint64_t x = *state;
        x ^= x >> 12; x ^= x << 25; x ^= x >> 27;
        *state = x;
        return x * 0x2545F4914F6CDD1DULL;
    }
    """
    int64_t kernel_clock(int which) nogil
    int varint_size(int64_t n) nogil
    uint8_t *put_varint(uint8_t *p, int64_t n) nogil
    void put_be16(uint8_t *p, uint16_t v) nogil
    void put_be32(uint8_t *p, uint32_t v) nogil
    void put_be64(uint8_t *p, uint64_t v) nogil
    uint32_t kafka_murmur2(const uint8_t *data, int32_t length) nogil
    uint32_t kafka_crc32(const uint8_t *data, int32_t length) nogil
    uint32_t kafka_fnv1a(const uint8_t *data, int32_t length) nogil
    uint64_t next_random(uint64_t *state) nogil
    int64_t atomic_add(int64_t *n, int64_t change) nogil
    int atomic_add_below(int64_t *n, int64_t change, int64_t limit) nogil
    uint8_t load_flags(const uint8_t *flags) nogil
    void add_flags(uint8_t *flags, uint8_t more) nogil
    int hold(uint32_t *held, uint8_t *holders, int change) nogil


# ---------------------------------------------------------------------------
# Rows, blocks, chunks

cdef enum Flag:
    SETTLED = 1     # has its one outcome
    FAILED = 2      # that outcome is an error
    POSSIBLY = 4    # an attempt may have put it into the log (message status POSSIBLY_PERSISTED)
    CLAIMED = 16    # is in a sealed batch that is not refused: may be under way
    TOLD = 8        # somebody has read the outcome, or a callback was given it

cdef struct Row:            # one cache line
    const uint8_t *key
    const uint8_t *value
    const uint8_t *headers  # wire form: count, then each header
    int64_t timestamp       # ms since the epoch; the broker's once delivered with LogAppendTime
    int64_t deadline        # monotonic ns until settled, the offset afterwards
    int32_t key_size        # -1: None
    int32_t value_size      # -1: None
    int32_t headers_size    # 0: none
    int32_t partition       # -1 until partitioned
    uint16_t block
    uint8_t padding
    uint8_t holders         # handles of it that are alive; 255 stays
    uint16_t error          # index into Chunk.errors
    uint8_t flags           # written under the chunk's lock until SETTLED

cdef struct Outcome:        # what is left of a Row once its chunk is reported: for handles
    int64_t timestamp
    int64_t offset
    int32_t key_size
    int32_t value_size
    int32_t partition
    uint16_t error
    uint8_t flags
    uint8_t holders

cdef struct Block:
    uint8_t *data
    uint32_t capacity
    uint32_t used
    uint32_t live           # rows in it that are not yet reported

#: What a row costs `buffer_memory` beside its payload: its line in the table and its callback.
ROW_COST = sizeof(Row) + sizeof(void *)
#: A chunk is closed at this many rows or bytes; the next one is opened behind it.
CHUNK_ROWS = 32768
CHUNK_BYTES = 4 << 20
#: An upper bound of what the record format adds to a row's payload: length, attributes,
#: timestamp and offset deltas, key and value lengths, header count.
RECORD_OVERHEAD = 5 + 1 + 10 + 5 + 5 + 5 + 1
BATCH_HEADER = 61

cdef uint32_t _CHUNK_ROWS = CHUNK_ROWS
cdef Py_ssize_t _CHUNK_BYTES = CHUNK_BYTES
cdef Py_ssize_t _ROW_COST = ROW_COST
cdef uint32_t _FIRST_BLOCK = 512
cdef uint32_t _LARGEST_BLOCK = 256 * 1024
cdef int64_t _NS = 1000000000
cdef Py_ssize_t _HEADER = BATCH_HEADER
cdef Py_ssize_t _RECORD = RECORD_OVERHEAD


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
        self.rows = <uint32_t *>malloc((count + 1) * sizeof(uint32_t))
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
            if not self.chunk.flags_of(self.at(i)) & SETTLED:
                n += 1
        return n

    def oldest_deadline(self):
        """Earliest deadline of the rows without outcome (monotonic seconds), None if all have."""
        cdef int64_t earliest = 0x7fffffffffffffff
        cdef uint32_t i
        cdef Row *row
        with nogil:
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
        cdef Chunk chunk = self.chunk
        cdef uint32_t i, taken = 0, seen = 0
        cdef Row *row
        cdef Py_ssize_t size
        part.chunk = chunk
        part.partition = self.partition
        part.level = self.level
        part.retries_used = self.retries_used
        part.most = self.most
        if self.most and most > self.most:
            most = self.most
        part.allocate(min(<Py_ssize_t>self.count, most))
        with nogil:
            with chunk.lock:
                if chunk.over():
                    seen = self.count       # all of them expired; the table is gone
                for i in range(0 if seen else self.count):
                    row = &chunk.rows[self.at(i)]
                    if row.flags & SETTLED:
                        self.nbytes -= payload_size(row)
                        seen += 1
                        continue
                    size = payload_size(row)
                    if taken >= most or (size + 16 > room and (taken or not at_least_one)):
                        break
                    row.flags |= CLAIMED
                    part.rows[taken] = self.at(i)
                    taken += 1
                    seen += 1
                    room -= size + 16
                    part.nbytes += size
                if taken:
                    chunk.pins += 1
        part.count = taken
        self.nbytes -= part.nbytes
        self.count -= seen
        if self.count == 0:
            self.nbytes = 0
        if self.rows == NULL:
            self.start += seen
        elif seen:
            # The tail moves to the front: a slice is cut a few times at most.
            for i in range(self.count):
                self.rows[i] = self.rows[i + seen]
        return part if taken else None

    def doubt(self):
        """An attempt of these rows may have been appended: any later failure says so."""
        cdef uint32_t i
        cdef Row *row
        with nogil:
            with self.chunk.lock:
                for i in range(0 if self.chunk.over() else self.count):
                    row = &self.chunk.rows[self.at(i)]
                    if not row.flags & SETTLED:
                        row.flags |= POSSIBLY

    def unclaim(self):
        """The batch with these rows was not appended: they are as before ``claim``."""
        cdef uint32_t i
        cdef Row *row
        with nogil:
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
        with nogil:
            self.chunk.move_out(self)
        self.chunk.budget.wake()

    # -- settling: each row once -------------------------------------------------------------

    def deliver(self, int64_t base_offset, int64_t timestamp=-1):
        """The broker has these rows, from *base_offset* on (-1: offsets unknown).

        *timestamp*: the broker's, where it overrides (LogAppendTime), else -1. Returns a Slice of
        the rows that this call settled (an expired row keeps its earlier outcome), to be given to
        ``report``; None if it settled none.
        """
        cdef Chunk chunk = self.chunk
        cdef Slice settled = self.none_of_it()
        cdef uint32_t i
        cdef Row *row
        with nogil:
            with chunk.lock:
                for i in range(0 if chunk.over() else self.count):
                    row = &chunk.rows[self.at(i)]
                    if row.flags & SETTLED:
                        continue
                    row.deadline = base_offset + i if base_offset >= 0 else -1
                    if timestamp >= 0:
                        row.timestamp = timestamp
                    add_flags(&row.flags, SETTLED)
                    settled.rows[settled.count] = self.at(i)
                    settled.count += 1
        return self.told(settled)

    def fail(self, not_persisted, possibly_persisted):
        """These rows have failed; a row's error is the one that fits what may be in the log."""
        cdef Chunk chunk = self.chunk
        cdef Slice settled = self.none_of_it()
        cdef uint32_t i
        cdef Row *row
        cdef uint8_t possibly = 0
        cdef Py_ssize_t first = len(chunk.errors)
        chunk.errors.append(not_persisted)
        chunk.errors.append(possibly_persisted)
        with nogil:
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
        # Rows that fail one by one must not use up the 16 bits of Row.error, nor must those who
        # come to fail what has its outcome already.
        if not possibly and len(chunk.errors) == first + 2:
            del chunk.errors[first + (1 if settled.count else 0):]
        return self.told(settled)

    cdef Slice none_of_it(self):
        """An empty slice with room for all of these rows."""
        cdef Slice part = Slice.__new__(Slice)
        part.chunk = self.chunk
        part.partition = self.partition
        part.allocate(self.count)
        part.count = 0
        return part

    cdef Slice told(self, Slice settled):
        """Wake those who wait for the rows that are settled now."""
        if self.chunk.waiters:
            self.chunk.wake_waiters()
        return settled if settled.count else None

    # -- reporting -----------------------------------------------------------------------------

    @property
    def wants_report(self):
        """Whether a callback has to run for any of these rows (else no thread need be woken)."""
        return self.chunk.callbacks != NULL or bool(self.chunk.extras)

    def report(self, on_error):
        """Run the callbacks of these settled rows, then let their memory go.

        ``on_error(callback, exception)`` is called for a callback that raises. Returns True if
        these were the last rows of the chunk.
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
                chunk.rows[row].flags |= TOLD
                error = chunk.errors[chunk.rows[row].error] if chunk.rows[row].flags & FAILED \
                    else None
                handle = new_handle(chunk, row)
                try:
                    callback(error, handle)
                except BaseException as failure:
                    on_error(callback, failure)
                callback = handle = None
            if chunk.extras:
                for callback in chunk.extras.pop(row, ()):
                    handle = new_handle(chunk, row)
                    try:
                        callback(handle)
                    except BaseException as failure:
                        on_error(callback, failure)
                callback = handle = None
        return self.finish()

    def finish(self):
        """Let the memory of these reported rows go; True if they were the chunk's last."""
        cdef Chunk chunk = self.chunk
        cdef uint32_t i
        cdef bint last
        for i in range(self.count):
            if chunk.rows[self.at(i)].flags & FAILED and chunk.rows[self.at(i)].holders:
                self.keep(self.at(i))
        with nogil:
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
        if chunk.kept is None:
            chunk.kept = {}
        chunk.kept[row] = (as_bytes(r.key, r.key_size), as_bytes(r.value, r.value_size))

    def first_error(self):
        """The error of the first row that failed, None if none did."""
        cdef uint32_t i
        for i in range(self.count):
            if self.chunk.flags_of(self.at(i)) & FAILED:
                return self.chunk.errors[self.chunk.outcome_of(self.at(i)).error]
        return None

    def untold_failures(self):
        """How many of these rows failed with nobody told: no callback, outcome never read."""
        cdef uint32_t i, n = 0
        if not self.chunk.failures:
            return 0
        for i in range(self.count):
            if self.chunk.flags_of(self.at(i)) & (FAILED | TOLD) == FAILED:
                n += 1
        return n


# ---------------------------------------------------------------------------
# Partitioning

cpdef enum:     # how a key is hashed
    NO_HASH = 0
    MURMUR2 = 1
    CRC32 = 2
    FNV1A = 3

cpdef enum:     # where a row without a key goes
    STICKY = 0
    RANDOM = 1
    ROUND_ROBIN = 2
    HASH_EMPTY = 3


@cython.final
cdef class Partitioner:
    """One topic's partitioner: how keys are hashed, and the state for rows without one.

    *hashing*: NO_HASH (keys are ignored), MURMUR2, CRC32 or FNV1A. *keyless*: STICKY (one
    partition until *sticky_bytes* have gone there, then another: KIP-794), RANDOM, ROUND_ROBIN,
    or HASH_EMPTY (as an empty key). *empty_is_keyless*: librdkafka's consistent_random treats an
    empty key as none. Owned by the topic's worker: one thread at a time calls it.
    """

    cdef int hashing, keyless
    cdef bint empty_is_keyless
    cdef Py_ssize_t sticky_bytes, sticky_left
    cdef int32_t current
    cdef uint64_t random_state

    def __init__(self, int hashing, int keyless, *, bint empty_is_keyless=False,
                 Py_ssize_t sticky_bytes=16384, uint64_t seed=1):
        self.hashing = hashing
        self.keyless = keyless
        self.empty_is_keyless = empty_is_keyless
        self.sticky_bytes = sticky_bytes
        self.random_state = seed | 1
        self.current = -1

    cdef void look_at(self, const int32_t *writable, int32_t n_writable) noexcept:
        """Before the rows of a chunk: leave a sticky partition that has lost its leader."""
        cdef int32_t i
        for i in range(n_writable):
            if writable[i] == self.current:
                return
        if n_writable:
            self.sticky_left = 0

    cdef int32_t choose(self, const Row *row, int32_t n, const int32_t *writable,
                        int32_t n_writable) noexcept nogil:
        cdef int32_t p, size = row.key_size
        if n <= 0:
            return -1
        if size > 0 or (size == 0 and not self.empty_is_keyless):
            if self.hashing != NO_HASH:
                return hash_partition(self.hashing, row.key, size, n)
        elif self.hashing != NO_HASH and self.keyless == HASH_EMPTY:
            return hash_partition(self.hashing, b"", 0, n)
        if self.keyless == ROUND_ROBIN:
            self.current = (self.current + 1) % (n_writable if n_writable else n)
            return writable[self.current] if n_writable else self.current
        if self.keyless == STICKY:
            p = self.current
            if p >= 0 and p < n and self.sticky_left > 0:
                self.sticky_left -= payload_size(row) + 12
                return p
            p = self.another(n, writable, n_writable)
            self.current = p
            self.sticky_left = self.sticky_bytes - payload_size(row) - 12
            return p
        return self.any_of(n, writable, n_writable)

    cdef int32_t any_of(self, int32_t n, const int32_t *writable, int32_t n_writable) noexcept nogil:
        cdef uint64_t r = next_random(&self.random_state) >> 33
        return writable[r % n_writable] if n_writable else <int32_t>(r % n)

    cdef int32_t another(self, int32_t n, const int32_t *writable, int32_t n_writable) noexcept nogil:
        cdef int32_t p = self.any_of(n, writable, n_writable)
        cdef int tries = 8
        while p == self.current and tries and (n_writable if n_writable else n) > 1:
            p = self.any_of(n, writable, n_writable)
            tries -= 1
        return p


cdef int32_t hash_partition(int hashing, const uint8_t *key, int32_t size, int32_t n) noexcept nogil:
    cdef int32_t p
    if hashing == MURMUR2:
        return <int32_t>((kafka_murmur2(key, size) & 0x7fffffff) % <uint32_t>n)
    if hashing == CRC32:
        return <int32_t>(kafka_crc32(key, size) % <uint32_t>n)
    # Sarama's hash partitioner: signed remainder, then the absolute value.
    p = <int32_t>kafka_fnv1a(key, size) % n
    return -p if p < 0 else p


def partition_for(int hashing, bytes key, int32_t partitions):
    """Partition of *key* among *partitions* by one of MURMUR2, CRC32, FNV1A."""
    return hash_partition(hashing, <const uint8_t *>PyBytes_AS_STRING(key), len(key), partitions)


# ---------------------------------------------------------------------------
# Encoding: record batch, message format v2 (KIP-98)

def encode_batch(list parts, checksum, *, compress=None, int attributes=0,
                 int64_t producer_id=-1, int producer_epoch=-1, int64_t base_sequence=-1):
    """Encode claimed slices as one record batch; returns ``(batch, count)``.

    *parts*: slices of one partition, in order, just claimed (this unpins them). *checksum*:
    ``crc32c(buffer) -> int``. *compress*: ``compress(buffer) -> bytes`` or None, its codec's
    number in the low bits of *attributes*. The records are written without the GIL.
    """
    cdef Py_ssize_t bound = _HEADER
    cdef Slice part
    cdef int64_t base_timestamp, most_timestamp
    cdef uint32_t count = 0
    cdef PyObject *raw
    cdef uint8_t *p
    cdef bytes body
    for part in parts:
        bound += part.nbytes + <Py_ssize_t>part.count * _RECORD
        if part.count == 0:
            raise ValueError("a batch needs rows: a slice has none")
    if not parts:
        raise ValueError("a batch needs rows: there is no slice")
    part = <Slice>parts[0]
    base_timestamp = most_timestamp = part.chunk.rows[part.at(0)].timestamp
    try:
        raw = new_bytes(NULL, bound)
        p = bytes_data(raw) + _HEADER
        for part in parts:
            with nogil:
                p = encode_records(part, p, base_timestamp, &most_timestamp, count)
            count += part.count
    finally:
        for part in parts:
            part.chunk.unpin()
    _PyBytes_Resize(&raw, p - bytes_data(raw))
    batch = <object>raw
    Py_DECREF(batch)                                # the name holds it now
    if compress is not None:
        body = compress(memoryview(batch)[_HEADER:])
        if not isinstance(body, bytes):
            raise TypeError(f"compress must return bytes, not {type(body).__name__}")
        raw = new_bytes(NULL, _HEADER + len(body))
        memcpy(bytes_data(raw) + _HEADER, <const char *>PyBytes_AS_STRING(body), len(body))
        batch = <object>raw
        Py_DECREF(batch)
    p = <uint8_t *>PyBytes_AS_STRING(batch)
    put_be64(p, 0)                                  # base offset: the broker's
    put_be32(p + 8, <uint32_t>(len(batch) - 12))
    put_be32(p + 12, 0xffffffffu)                   # partition leader epoch: the broker's
    p[16] = 2                                       # magic
    put_be16(p + 21, <uint16_t>attributes)
    put_be32(p + 23, count - 1)                     # last offset delta
    put_be64(p + 27, <uint64_t>base_timestamp)
    put_be64(p + 35, <uint64_t>most_timestamp)
    put_be64(p + 43, <uint64_t>producer_id)
    put_be16(p + 51, <uint16_t>producer_epoch)
    put_be32(p + 53, <uint32_t>base_sequence)
    put_be32(p + 57, count)
    put_be32(p + 17, <uint32_t>checksum(memoryview(batch)[21:]))
    return batch, count


cdef uint8_t *encode_records(Slice part, uint8_t *p, int64_t base_timestamp,
                             int64_t *most_timestamp, uint32_t offset_delta) noexcept nogil:
    cdef uint32_t i
    cdef const Row *row
    cdef int64_t length, delta
    for i in range(part.count):
        row = &part.chunk.rows[part.at(i)]
        delta = row.timestamp - base_timestamp
        if row.timestamp > most_timestamp[0]:
            most_timestamp[0] = row.timestamp
        length = (1 + varint_size(delta) + varint_size(offset_delta)
                  + varint_size(row.key_size) + varint_size(row.value_size))
        if row.key_size > 0:
            length += row.key_size
        if row.value_size > 0:
            length += row.value_size
        length += row.headers_size if row.headers_size else 1
        p = put_varint(p, length)
        p[0] = 0                                    # record attributes: none are defined
        p = put_varint(p + 1, delta)
        p = put_varint(p, offset_delta)
        offset_delta += 1
        p = put_varint(p, row.key_size)
        if row.key_size > 0:
            memcpy(p, row.key, row.key_size)
            p += row.key_size
        p = put_varint(p, row.value_size)
        if row.value_size > 0:
            memcpy(p, row.value, row.value_size)
            p += row.value_size
        if row.headers_size:
            memcpy(p, row.headers, row.headers_size)
            p += row.headers_size
        else:
            p[0] = 0                                # no headers
            p += 1
    return p


# ---------------------------------------------------------------------------
# Handles

cdef object _behaviour = None

def set_behaviour(behaviour):
    """Where a Delivery's methods that wait or make objects are written: ``delivery.py``."""
    global _behaviour
    _behaviour = behaviour


cdef inline Delivery new_handle(Chunk chunk, uint32_t row):
    cdef Delivery handle = Delivery.__new__(Delivery)
    handle.chunk = chunk
    handle.row = row
    hold(&chunk.held, chunk.holders_at(row), 1)
    return handle


@cython.no_gc
@cython.freelist(512)
@cython.final
cdef class Delivery:
    """One message's future and report: returned by ``send()``, given to ``on_delivery``.

    It is a chunk and a row number, and nothing else, so that a million of them cost tens of bytes
    each and the garbage collector none. (A subclass written in Python would be tracked by it.)
    Methods that wait or make objects are written in ``delivery.py``.
    """

    cdef readonly Chunk chunk
    cdef readonly uint32_t row

    def __dealloc__(self):
        if self.chunk is not None:
            if hold(&self.chunk.held, self.chunk.holders_at(self.row), -1) == 0:
                if self.chunk.kept is not None:
                    self.chunk.kept.pop(self.row, None)

    def __init__(self):
        raise TypeError("a Delivery is made by send()")

    def __reduce__(self):
        raise TypeError("a Delivery cannot be copied or pickled: its outcome comes to this one")

    def __eq__(self, other):
        if not isinstance(other, Delivery):
            return NotImplemented
        return (<Delivery>other).chunk is self.chunk and (<Delivery>other).row == self.row

    def __hash__(self):
        return hash((id(self.chunk), self.row))

    @property
    def topic(self):
        """The topic that the message was sent to."""
        return self.chunk.topic

    @property
    def partition(self):
        """The partition, None until it has been chosen."""
        cdef int32_t partition = self.chunk.outcome_of(self.row).partition
        return None if partition < 0 else partition

    @property
    def offset(self):
        """Offset in the partition; None until delivered, -1 where the broker gave none."""
        cdef Outcome outcome = self.chunk.outcome_of(self.row)
        if outcome.flags & (SETTLED | FAILED) != SETTLED:
            return None
        return outcome.offset

    @property
    def timestamp(self):
        """Milliseconds since the epoch: the message's, or the broker's once delivered, where the
        topic says LogAppendTime."""
        return self.chunk.outcome_of(self.row).timestamp

    @property
    def key(self):
        """The serialized key: until the message is reported, and for as long as the handle lives
        if it failed; None otherwise or if there is none."""
        return payload_of(self, 0)

    @property
    def value(self):
        """The serialized value, as long as :attr:`key`."""
        return payload_of(self, 1)

    @property
    def serialized_key_size(self):
        """Bytes of the key, -1 if there is none."""
        return self.chunk.outcome_of(self.row).key_size

    @property
    def serialized_value_size(self):
        """Bytes of the value, -1 if there is none."""
        return self.chunk.outcome_of(self.row).value_size

    def settled(self):
        """Whether the message has its outcome."""
        return self.chunk.flags_of(self.row) & SETTLED != 0

    def possibly_persisted(self):
        """Whether an attempt may have put the message into the log."""
        return self.chunk.flags_of(self.row) & (POSSIBLY | CLAIMED) != 0

    def failure(self):
        """The error of a message that failed, else None; the outcome counts as told."""
        cdef uint8_t *flags = self.chunk.flags_at(self.row)
        if flags[0] & SETTLED:
            flags[0] |= TOLD
        if flags[0] & FAILED:
            return self.chunk.errors[self.chunk.outcome_of(self.row).error]
        return None

    def watch(self, lock):
        """Have *lock* released when the outcome is there; False if it is there already."""
        return self.chunk.add_waiter(self.row, lock)

    def unwatch(self, lock):
        """Give up waiting."""
        if self.chunk.waiters is not None:
            self.chunk.drop_waiter(self.row, lock)

    def when_settled(self, function):
        """Have ``function(handle)`` called in the Reports thread; False if already settled."""
        return self.chunk.add_extra(self.row, function)

    # -- as concurrent.futures.Future has them -----------------------------------------------

    def result(self, timeout=None):
        """Wait for the outcome; returns :class:`RecordMetadata` or raises the message's error.

        *timeout* in seconds; :class:`TimeoutError` if there is no outcome by then.
        """
        return _behaviour.result(self, timeout)

    def exception(self, timeout=None):
        """Wait for the outcome; returns the message's error, None if it was delivered."""
        return _behaviour.exception(self, timeout)

    def done(self):
        """Whether the message has its outcome."""
        return self.settled()

    def add_done_callback(self, function):
        """Have ``function(delivery)`` called once there is an outcome: in the Reports thread, or
        at once in this one if there is one already."""
        _behaviour.add_done_callback(self, function)

    def __await__(self):
        return _behaviour.wait_in_event_loop(self).__await__()

    # -- as kafka-python's FutureRecordMetadata has them ---------------------------------------

    def get(self, timeout=None):
        """kafka-python's name for :meth:`result`; raises ``KafkaTimeoutError`` at the timeout."""
        return _behaviour.get(self, timeout)

    def add_callback(self, function, *args, **kwargs):
        """Have ``function(*args, record_metadata, **kwargs)`` called if it is delivered."""
        return _behaviour.add_callback(self, function, args, kwargs)

    def add_errback(self, function, *args, **kwargs):
        """Have ``function(*args, error, **kwargs)`` called if it fails."""
        return _behaviour.add_errback(self, function, args, kwargs)

    def add_both(self, function, *args, **kwargs):
        """``add_callback`` and ``add_errback`` with the same function."""
        _behaviour.add_callback(self, function, args, kwargs)
        return _behaviour.add_errback(self, function, args, kwargs)

    def succeeded(self):
        """Whether it is delivered."""
        return self.settled() and self.failure() is None

    def failed(self):
        """Whether it has failed."""
        return self.settled() and self.failure() is not None

    @property
    def is_done(self):
        """Whether it has its outcome (an attribute, as in kafka-python)."""
        return self.settled()

    @property
    def error(self):
        """The error of a failed message, else None."""
        return self.failure()

    @property
    def status(self):
        """:class:`Status`: whether the message may be, is, or is not in the log."""
        return _behaviour.status(self)

    def __repr__(self):
        return _behaviour.describe(self)


# Not a method: a method in C would cost each handle the pointer to a table of methods.
cdef payload_of(Delivery handle, int which):
    cdef Chunk chunk = handle.chunk
    kept = chunk.kept.get(handle.row) if chunk.kept is not None else None
    if kept is not None:
        return kept[which]
    return chunk.payload_of(handle.row, which)


# ---------------------------------------------------------------------------
# Admission

cdef struct Payload:
    Py_buffer views[3]
    int open                            # bit i: views[i] must be released
    const uint8_t *data[3]              # key, value, headers
    Py_ssize_t size[3]                  # -1: None
    Py_ssize_t total                    # key and value
    Py_ssize_t headers_size


@cython.final
cdef class TopicSlot:
    """One topic's open chunk, and the full ones that wait before it."""

    cdef readonly str topic
    cdef Chunk chunk
    cdef list full
    cdef bint announced                 # the dispatcher has been told and has not come yet


cdef class Admission:
    """The front door: ``send()`` in one compiled call. ``producer.Producer`` derives from it.

    A subclass gives what is not per message: ``_announce(slot)`` (tell the dispatcher that a
    topic has an open chunk), ``_start()`` (first use), ``_refuse()`` (raise: no more messages are
    taken), ``_wait_for_space(bytes, until)``, ``_check_topic(topic)``, ``_too_large(...)``,
    ``_serialize(...)``.
    """

    cdef Budget budget
    cdef dict slots
    cdef object announce
    cdef object home                    # goes along with each chunk, for its handles
    cdef bint unconfirmed
    cdef object fake_clock              # None: the machine's
    cdef int64_t timeout                # ns
    cdef Py_ssize_t max_request_size
    cdef int64_t serial
    cdef readonly int64_t accepted      # messages, ever
    cdef public bint _ready             # started, and taking messages
    cdef bint serializing
    cdef cython.pymutex lock

    def _open(self, Budget budget, announce, home, *, double delivery_timeout,
              Py_ssize_t max_request_size, bint serializing, bint unconfirmed, fake_clock=None):
        """Set up, empty: at construction, and again in a forked child.

        *delivery_timeout* in seconds; *fake_clock*: a clock object to ask instead of the
        machine's, for tests.
        """
        self.budget = budget
        self.slots = {}
        self.announce = announce
        self.home = home
        self.unconfirmed = unconfirmed
        self.timeout = <int64_t>(delivery_timeout * _NS)
        self.max_request_size = max_request_size
        self.serializing = serializing
        self.fake_clock = fake_clock
        self.serial = 0
        self.accepted = 0

    def send(self, topic, value=None, key=None, headers=None, partition=None, timestamp_ms=None,
             *, on_delivery=None, delivery_timeout_ms=None):
        """Accept one message and return its :class:`Delivery` at once.

        Never waits for the network. With less than the message's bytes left of ``buffer_memory``
        it waits for space up to ``max_block_ms`` (KIP-286).

        Args:
            topic (str): topic name.
            value: bytes-like, or None (a tombstone); anything with ``value_serializer`` set.
            key: bytes-like, or None; decides the partition. Anything with ``key_serializer`` set.
            headers: list of ``(str, bytes or None)``, or None.
            partition (int): send it there; None: the partitioner decides.
            timestamp_ms (int): milliseconds since the epoch; None: now.
            on_delivery: ``on_delivery(error, delivery)``, called once in the Reports thread; error
                is None if the message is in the log.
            delivery_timeout_ms (int): for this message, instead of ``delivery_timeout_ms``.

        Raises:
            TypeError, ValueError: it can never be right (type, topic name, negative partition,
                larger than ``max_request_size``); nothing is accepted.
            BufferFullError: no space for ``max_block_ms``; in a callback, at once.
            ProducerClosedError: after ``close()``.
            ProducerBrokenError: a stage died of a bug; the cause is chained.
        """
        cdef TopicSlot slot
        cdef PyObject *found
        cdef Payload payload
        cdef Py_ssize_t cost, reserved = 0
        cdef int64_t now, timeout, timestamp
        cdef int32_t wanted = -1
        cdef Delivery handle
        cdef object encoded = None
        cdef object until = None
        if not self._ready:
            self._start()
        found = PyDict_GetItem(self.slots, topic)
        slot = <TopicSlot>found if found != NULL else self.new_slot(topic)
        if self.serializing:
            key, value = self._serialize(topic, key, value, headers)
        if partition is not None:
            wanted = checked_int(partition, "partition", 0, 0x7fffffff)
        timeout = self.timeout
        if delivery_timeout_ms is not None:
            timeout = 1000000 * checked_int(delivery_timeout_ms, "delivery_timeout_ms", 1,
                                            0x7fffffff)
        timestamp = -1
        if timestamp_ms is not None:
            timestamp = checked_int(timestamp_ms, "timestamp_ms", 0, 1 << 62)
        if on_delivery is not None and not callable(on_delivery):
            raise TypeError(f"on_delivery must be callable, not {type(on_delivery).__name__}")
        payload.open = 0
        try:
            payload_take(&payload, 0, key, "key")
            payload_take(&payload, 1, value, "value")
            payload.headers_size = 0
            if headers is not None:
                encoded = self.encode_headers(headers)
                payload.data[2] = <const uint8_t *>PyBytes_AS_STRING(encoded)
                payload.headers_size = len(<bytes>encoded)
            cost = payload.total + payload.headers_size
            if cost + _HEADER + _RECORD > self.max_request_size:
                self._too_large(topic, cost + _HEADER + _RECORD)
            now = self.now()
            while True:
                while not self.budget.take(cost + _ROW_COST):
                    until = self._wait_for_space(cost + _ROW_COST, until)
                    if not self._ready:
                        self._start()   # closed, broken or forked while it waited
                reserved = cost + _ROW_COST
                # From here to the append no Python code runs: a KeyboardInterrupt finds the
                # message either not accepted, or accepted and on its way.
                handle = self.append(slot, &payload, wanted, timestamp, now, timeout, on_delivery)
                if handle is not None:
                    reserved = 0        # from now on it is the chunk that gives it back
                    break
                self.budget.give_back(reserved)
                reserved = 0
                self._start()           # closed or broken while a serializer ran
        finally:
            payload_release(&payload)
            if reserved:
                self.budget.give_back(reserved)
        if not slot.announced:
            slot.announced = True
            try:
                self.announce(slot)
            except BaseException:
                # The message is accepted: if this is a KeyboardInterrupt it is told of once more,
                # and if that fails too, by the next send, or flush.
                slot.announced = False
                self.announce(slot)
                slot.announced = True
                raise
        return handle

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
        cdef TopicSlot slot
        self._check_topic(topic)
        slot = TopicSlot.__new__(TopicSlot)
        slot.topic = str.__str__(topic)     # of a member of a StrEnum: its text
        slot.full = []
        return <TopicSlot>self.slots.setdefault(slot.topic, slot)

    cdef Delivery append(self, TopicSlot slot, Payload *payload, int32_t partition,
                         int64_t timestamp, int64_t now, int64_t timeout, on_delivery):
        """Append one message to the topic's open chunk; None if messages are not taken any more."""
        cdef Delivery handle = Delivery.__new__(Delivery)
        cdef Chunk spare = None
        cdef Chunk chunk
        cdef Py_ssize_t size = payload.total + payload.headers_size
        cdef bint done
        while True:
            if slot.chunk is None or slot.chunk.count >= _CHUNK_ROWS \
                    or slot.chunk.nbytes + size > _CHUNK_BYTES:
                spare = self.new_chunk(slot)
            with self.lock:
                if not self._ready:
                    return None
                if spare is not None and (
                        slot.chunk is None or slot.chunk.count >= _CHUNK_ROWS
                        or slot.chunk.nbytes + size > _CHUNK_BYTES):
                    if slot.chunk is not None:
                        slot.full.append(slot.chunk)
                    slot.chunk = spare
                chunk = slot.chunk
                done = chunk is not None and append_row(
                    chunk, payload, partition,
                    timestamp if timestamp >= 0 else (now + chunk.since_epoch) // 1000000,
                    now + timeout, <PyObject *>on_delivery)
                if done:
                    handle.chunk = chunk
                    handle.row = chunk.count - 1
                    hold(&chunk.held, &chunk.rows[handle.row].holders, 1)
                    self.accepted += 1
            if done:
                return handle
            if chunk is not None:
                raise MemoryError("no memory for a message, although buffer_memory allows it")
            # The dispatcher took the chunk between our look and our lock: look again.

    cdef Chunk new_chunk(self, TopicSlot slot):
        cdef Chunk chunk = Chunk.__new__(Chunk)
        chunk.topic = slot.topic
        chunk.budget = self.budget
        chunk.errors = []
        chunk.home = self.home
        chunk.since_epoch = self.since_epoch()
        chunk.opened = self.now() / <double>_NS
        chunk.unconfirmed = self.unconfirmed
        self.serial += 1
        chunk.serial = self.serial
        return chunk

    def _take(self, TopicSlot slot):
        """Close the topic's open chunk and hand over all that wait, in order."""
        cdef Chunk chunk
        cdef list chunks, fresh = []
        with self.lock:
            slot.announced = False
            chunks = slot.full
            slot.full = fresh
            chunk = slot.chunk
            slot.chunk = None
        if chunk is not None and chunk.count:
            chunks.append(chunk)
        for chunk in chunks:
            chunk.unreported = chunk.count
            chunk.closed = True
        return chunks

    def _take_all(self):
        """The chunks of every topic, taken."""
        return [chunk for slot in list(self.slots.values()) for chunk in self._take(slot)]

    def _unannounced(self):
        """Slots with rows that the dispatcher may not have been told of: a KeyboardInterrupt has
        cut the announcement short, or the thread that makes it has not come so far."""
        with self.lock:
            pass                        # whoever appends at this moment is seen
        return [slot for slot in list(self.slots.values())
                if (<TopicSlot>slot).chunk is not None]

    cdef bytes encode_headers(self, headers):
        """The headers in wire form; nothing if there are none."""
        cdef bytearray out = bytearray()
        cdef tuple fixed
        if not isinstance(headers, (list, tuple)):
            raise TypeError(f"headers must be a list of pairs (str, bytes), "
                            f"not {type(headers).__name__}")
        fixed = tuple(headers)          # it might change while it is encoded
        if not fixed:
            return b""
        put_int(out, len(fixed))
        for position, header in enumerate(fixed):
            try:
                name, data = header
            except (TypeError, ValueError):
                raise TypeError(f"headers[{position}] must be a pair (str, bytes), "
                                f"not {type(header).__name__}") from None
            if not isinstance(name, str):
                raise TypeError(f"headers[{position}]: the name must be str, "
                                f"not {type(name).__name__}")
            try:
                name = name.encode()
            except UnicodeEncodeError as error:
                raise ValueError(f"headers[{position}]: the name {name!r} cannot be written as "
                                 f"UTF-8") from error
            put_int(out, len(name))
            out += name
            if data is None:
                put_int(out, -1)
            elif isinstance(data, (bytes, bytearray, memoryview)):
                data = bytes(data)
                put_int(out, len(data))
                out += data
            else:
                raise TypeError(f"headers[{position}]: the value must be bytes or None, "
                                f"not {type(data).__name__}")
        return bytes(out)


cdef put_int(bytearray out, int64_t n):
    cdef uint8_t buffer[10]
    cdef uint8_t *end = put_varint(buffer, n)
    out += PyBytes_FromStringAndSize(<char *>buffer, end - buffer)


cdef int64_t checked_int(object number, str name, int64_t least, int64_t most) except? -1:
    cdef int64_t n
    if not isinstance(number, int) or isinstance(number, bool):
        raise TypeError(f"{name} must be an int, not {type(number).__name__}")
    if not least <= number <= most:
        raise ValueError(f"{name} must be between {least} and {most}, not {number}")
    n = number
    return n


cdef int payload_take(Payload *payload, int which, object data, str name) except -1:
    if which == 0:
        payload.total = 0
    if data is None:
        payload.data[which] = NULL
        payload.size[which] = -1
        return 0
    if PyBytes_CheckExact(data):
        payload.data[which] = <const uint8_t *>PyBytes_AS_STRING(data)
        payload.size[which] = len(<bytes>data)
    elif isinstance(data, (bytes, bytearray, memoryview)):
        try:
            PyObject_GetBuffer(data, &payload.views[which], PyBUF_SIMPLE)
        except BufferError as error:
            raise ValueError(f"{name} must be contiguous in memory") from error
        payload.open |= 1 << which
        payload.data[which] = <const uint8_t *>payload.views[which].buf
        payload.size[which] = payload.views[which].len
    else:
        raise TypeError(f"{name} must be bytes, bytearray, memoryview or None, "
                        f"not {type(data).__name__}; set {name}_serializer to send other types")
    payload.total += payload.size[which]
    return 0


cdef void payload_release(Payload *payload) noexcept:
    if payload.open & 1:
        PyBuffer_Release(&payload.views[0])
    if payload.open & 2:
        PyBuffer_Release(&payload.views[1])


cdef bint append_row(Chunk chunk, Payload *payload, int32_t partition, int64_t timestamp,
                     int64_t deadline, PyObject *callback) noexcept:
    """Copy one message into the chunk; false if there is no memory."""
    cdef bint with_callback = callback != <PyObject *>None
    cdef Py_ssize_t size = payload.total + payload.headers_size
    cdef Row *row = chunk.new_row(with_callback)
    cdef uint8_t *p
    cdef int i
    if row == NULL:
        return False
    p = chunk.room(size)
    if p == NULL:
        return False
    row.key = p
    row.key_size = <int32_t>payload.size[0]
    if payload.size[0] > 0:
        memcpy(p, payload.data[0], payload.size[0])
        p += payload.size[0]
    row.value = p
    row.value_size = <int32_t>payload.size[1]
    if payload.size[1] > 0:
        memcpy(p, payload.data[1], payload.size[1])
        p += payload.size[1]
    row.headers = p
    row.headers_size = <int32_t>payload.headers_size
    if payload.headers_size:
        memcpy(p, payload.data[2], payload.headers_size)
    row.timestamp = timestamp
    row.deadline = deadline
    row.partition = partition
    row.block = <uint16_t>(chunk.n_blocks - 1)
    row.flags = row.holders = 0
    row.error = 0
    if with_callback:
        Py_INCREF(<object>callback)
        chunk.callbacks[chunk.count] = callback
    if deadline < chunk.earliest:
        chunk.earliest = deadline
    chunk.nbytes += size
    chunk.count += 1
    return True


# ---------------------------------------------------------------------------
# Writing to a socket

cdef extern from *:
    """
    #include <errno.h>
    #include <poll.h>
    #include <sys/socket.h>
    #include <sys/uio.h>

    #define MOST_BUFFERS 64
    #ifndef MSG_NOSIGNAL        /* macOS; Python ignores SIGPIPE */
    #define MSG_NOSIGNAL 0
    #endif

    /* Writes until all is written, `patience` ms were spent waiting for room, or it fails.
       Returns the bytes written; if that is 0, errno says why (0: no room). */
    static Py_ssize_t kernel_write(int fd, struct iovec *iov, int count, int patience) {
        Py_ssize_t total = 0;
        int64_t began = -1, waited = 0;     /* -1: it has not had to wait yet */
        errno = 0;
        while (count > 0) {
            struct msghdr message;
            memset(&message, 0, sizeof message);
            message.msg_iov = iov;
            message.msg_iovlen = count;
            Py_ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
            if (sent < 0) {
                if (errno == EINTR) continue;
                if (errno != EAGAIN && errno != EWOULDBLOCK) break;
                errno = 0;
                /* A peer that takes a little at a time must not keep its owner here. */
                if (began < 0) began = kernel_clock(0);
                waited = (kernel_clock(0) - began) / 1000000;
                struct pollfd ready = {fd, POLLOUT, 0};
                if (waited >= patience || poll(&ready, 1, patience - (int)waited) <= 0) {
                    errno = 0;
                    break;
                }
                continue;
            }
            total += sent;
            while (count > 0 && (size_t)sent >= iov->iov_len) {
                sent -= iov->iov_len; iov++; count--;
            }
            if (count > 0) {
                iov->iov_base = (char *)iov->iov_base + sent;
                iov->iov_len -= sent;
            }
        }
        return total;
    }
    """
    cdef struct iovec:
        void *iov_base
        size_t iov_len
    int MOST_BUFFERS
    int errno
    Py_ssize_t kernel_write(int fd, iovec *iov, int count, int patience) nogil


def write_buffers(int fd, buffers, int patience_ms):
    """Write *buffers* to a non-blocking socket, waiting for room without the GIL.

    Returns how many bytes were written: fewer than all when the socket was full and had not taken
    the rest *patience_ms* later; at most 64 buffers are looked at. Raises OSError when nothing could be written.
    A large request written piece by piece from Python would take the GIL once a piece, and each
    time may wait a switch interval for it while user code loops over ``send()``.
    """
    cdef iovec iov[64]
    cdef Py_buffer views[64]
    cdef int count = 0, i, problem
    cdef Py_ssize_t written
    try:
        for buffer in buffers:
            if count == MOST_BUFFERS:
                break
            PyObject_GetBuffer(buffer, &views[count], PyBUF_SIMPLE)
            iov[count].iov_base = views[count].buf
            iov[count].iov_len = views[count].len
            count += 1
        with nogil:
            written = kernel_write(fd, iov, count, patience_ms)
            problem = errno
        if written == 0 and problem:
            raise OSError(problem, "the socket cannot be written to")
        return written
    finally:
        for i in range(count):
            PyBuffer_Release(&views[i])
