# Partitioning: choose the partition of each row.

fill_crc_table()

cpdef enum:     # hash function of keys
    NO_HASH = 0
    MURMUR2 = 1
    CRC32 = 2
    FNV1A = 3

cpdef enum:     # how a row without a key is partitioned
    STICKY = 0
    RANDOM = 1
    ROUND_ROBIN = 2
    HASH_EMPTY = 3


@cython.final
cdef class Partitioner:
    """One topic's partitioner: the hash of keys, and the state for rows without a key.

    *hashing*: NO_HASH (keys are ignored), MURMUR2, CRC32 or FNV1A. *keyless*: STICKY (stay with one
    partition for *sticky_bytes*, then choose another: KIP-794), RANDOM, ROUND_ROBIN, or HASH_EMPTY
    (hash as an empty key). *empty_is_keyless*: treat an empty key as no key, as librdkafka's
    consistent_random does. *seed*: of the random numbers. Owned by the topic's worker: only one
    thread may call it at a time.
    """

    cdef int hashing, keyless
    cdef bint empty_is_keyless
    cdef Py_ssize_t sticky_bytes, sticky_left
    cdef int32_t current
    cdef uint64_t random_state
    cdef object bounded_partitions      # the partitions that `bounds` apply to
    cdef bytes bounds                   # packed uint32: see set_queue_bounds(); None: equal shares
    cdef const uint32_t *bound          # the same for the current chunk; NULL: equal shares

    def __init__(self, int hashing, int keyless, *, bint empty_is_keyless=False,
                 Py_ssize_t sticky_bytes=16384, uint64_t seed=1):
        self.hashing = hashing
        self.keyless = keyless
        self.empty_is_keyless = empty_is_keyless
        self.sticky_bytes = sticky_bytes
        self.random_state = seed | 1
        self.current = -1

    @property
    def is_sticky(self):
        """Return whether rows without a key stick to a partition.

        Only then does :meth:`set_queue_bounds` have an effect.
        """
        return self.keyless == STICKY

    def set_queue_bounds(self, bytes available not None, bytes bounds):
        """Distribute rows without a key unevenly from now on.

        *available*: the partitions with a leader, as packed int32. *bounds*: for each of them the
        cumulative weight up to and including it, as packed uint32; None: equal shares. Applies as
        long as exactly these partitions are available. Raises ValueError if the lengths differ.
        """
        if bounds is not None and len(bounds) != len(available):
            raise ValueError("bounds must have one entry for each available partition")
        if not bounds or bounds.endswith(bytes(sizeof(uint32_t))):
            bounds = None               # all weights are 0: a draw would divide by 0
        self.bounded_partitions = available
        self.bounds = bounds

    cdef void look_at(self, bytes available, const int32_t *writable,
                      int32_t n_writable) noexcept:
        """Prepare for the rows of a chunk: leave a sticky partition that has lost its leader."""
        cdef int32_t i
        self.bound = NULL
        if self.bounds is not None and self.bounded_partitions == available:
            if n_writable and n_writable * sizeof(uint32_t) == <size_t>len(self.bounds):
                self.bound = <const uint32_t *>PyBytes_AS_STRING(self.bounds)
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
                self.sticky_left -= payload_size(row) + _RECORD_ALLOWANCE
                return p
            p = self.another(n, writable, n_writable)
            self.current = p
            self.sticky_left = self.sticky_bytes - payload_size(row) - _RECORD_ALLOWANCE
            return p
        return self.any_of(n, writable, n_writable)

    cdef int32_t any_of(self, int32_t n, const int32_t *writable,
                        int32_t n_writable) noexcept nogil:
        cdef uint64_t r = next_random(&self.random_state) >> 33
        return writable[r % n_writable] if n_writable else <int32_t>(r % n)

    cdef int32_t another(self, int32_t n, const int32_t *writable,
                         int32_t n_writable) noexcept nogil:
        cdef int32_t p
        cdef int tries = 8
        if self.bound != NULL:
            return writable[drawn(self.bound, n_writable, next_random(&self.random_state) >> 32)]
        p = self.any_of(n, writable, n_writable)
        while p == self.current and tries and (n_writable if n_writable else n) > 1:
            p = self.any_of(n, writable, n_writable)
            tries -= 1
        return p


cdef int32_t drawn(const uint32_t *bound, int32_t count, uint64_t number) noexcept nogil:
    """Return the index of the share that *number*, a random 32-bit number, falls into."""
    cdef int32_t low = 0, high = count - 1, middle
    number %= bound[count - 1]
    while low < high:
        middle = (low + high) // 2
        if bound[middle] > number:
            high = middle
        else:
            low = middle + 1
    return low


cdef int32_t hash_partition(int hashing, const uint8_t *key, int32_t size,
                            int32_t n) noexcept nogil:
    cdef int32_t p
    if hashing == MURMUR2:
        return <int32_t>((kafka_murmur2(key, size) & 0x7fffffff) % <uint32_t>n)
    if hashing == CRC32:
        # librdkafka's consistent partitioners use the CRC-32 of zlib.
        return <int32_t>(crc32_of(key, size) % <uint32_t>n)
    # Sarama's hash partitioner: signed remainder, then the absolute value.
    p = <int32_t>kafka_fnv1a(key, size) % n
    return -p if p < 0 else p


def partition_for(int hashing, bytes key not None, int32_t partitions):
    """Return the partition of *key* among *partitions*, hashed by MURMUR2, CRC32 or FNV1A."""
    if partitions < 1:
        raise ValueError(f"partitions must be at least 1, not {partitions}")
    return hash_partition(hashing, <const uint8_t *>PyBytes_AS_STRING(key), len(key), partitions)


# -- splitting a chunk by partition --------------------------------------------------------

cdef struct Census:             # of a chunk's rows, by partition
    uint32_t rows               # their number when the count began: an open chunk may grow
    int32_t partitions          # their number; as an index it means rows of unknown partitions
    int32_t *found              # the partitions that have rows, in the order of their first one
    int32_t n_found
    uint32_t *counts            # rows, by partition
    int64_t *sizes              # payload bytes, by partition


cdef tuple split_chunk(Chunk chunk, Partitioner partitioner, int32_t partitions, bytes available):
    """See ``Chunk.split``."""
    cdef Census census
    cdef list parts = []        # before the census: this may run Python code, which adds rows
    if not 0 <= partitions < 0x7fffffff:
        raise ValueError(f"a topic cannot have {partitions} partitions")
    cdef bint done
    enter_guard(&chunk.lock)
    done = chunk.is_done()
    if not done:
        chunk.pins += 1         # so that the row table stays even if its rows expire
    leave_guard(&chunk.lock)
    if done:
        return [], None
    memset(&census, 0, sizeof(Census))
    try:
        take_census(&census, chunk, partitioner, partitions, available)
        cut(&census, chunk, parts)
    finally:
        free(census.found)
        free(census.counts)
        free(census.sizes)
        unpin(chunk)
    for part in parts:
        if (<Slice>part).partition == partitions:
            parts.remove(part)
            return parts, part
    return parts, None


cdef take_census(Census *census, Chunk chunk, Partitioner partitioner, int32_t partitions,
                 bytes available):
    """Choose a partition for the rows that have none, and count the rows of each partition."""
    cdef const int32_t *writable = <const int32_t *>PyBytes_AS_STRING(available)
    cdef int32_t n_writable = len(available) // sizeof(int32_t)
    cdef int64_t most = min(<int64_t>partitions, <int64_t>chunk.count) + 2
    while n_writable and writable[n_writable - 1] >= partitions:
        n_writable -= 1         # they ascend, and no partition beyond the number may be chosen
    census.partitions = partitions
    census.rows = chunk.count
    census.found = <int32_t *>new_numbers(most * sizeof(int32_t))
    census.counts = <uint32_t *>new_numbers((partitions + 1) * sizeof(uint32_t))
    census.sizes = <int64_t *>new_numbers((partitions + 1) * sizeof(int64_t))
    if census.found == NULL or census.counts == NULL or census.sizes == NULL:
        raise MemoryError()
    memset(census.counts, 0, (partitions + 1) * sizeof(uint32_t))
    memset(census.sizes, 0, (partitions + 1) * sizeof(int64_t))
    if partitioner is not None:
        partitioner.look_at(available, writable, n_writable)
    if chunk.nbytes + <Py_ssize_t>chunk.count * _RECORD < _SHORT_WORK:
        count_rows(census, chunk, partitioner, writable, n_writable)
        return
    with nogil:
        count_rows(census, chunk, partitioner, writable, n_writable)
        want_gil()
    got_gil()


cdef inline bint has_ended(const Row *row) noexcept nogil:
    """Return whether *row* got its outcome before its partition. Such a row is in no slice.

    Its key must not be read:

    1. a chunk waits for its topic's metadata, and some of its rows expire;
    2. these are reported, which frees the payload blocks that contain no other row;
    3. the metadata arrives, and the chunk is split.

    A pin keeps only the blocks that still exist at step 3. A row that expires after that keeps its
    payload until the split ends. It is counted then, but may be missing from its slice.
    """
    return row.partition < 0 and load_flags(&row.flags) & SETTLED


cdef void count_rows(Census *census, Chunk chunk, Partitioner partitioner,
                     const int32_t *writable, int32_t n_writable) noexcept nogil:
    cdef int32_t p
    cdef uint32_t i
    cdef Row *row
    for i in range(census.rows):
        row = &chunk.rows[i]
        if has_ended(row):
            continue
        if row.partition < 0 and partitioner is not None:
            store_partition(&row.partition,
                            partitioner.choose(row, census.partitions, writable, n_writable))
        p = partition_or_unknown(row, census.partitions)
        if census.counts[p] == 0:
            census.found[census.n_found] = p
            census.n_found += 1
        census.counts[p] += 1
        census.sizes[p] += payload_size(row)


cdef cut(Census *census, Chunk chunk, list parts):
    """Add to *parts* a slice for each partition with rows, and one for unknown partitions."""
    cdef Slice part
    cdef int32_t i, p
    cdef uint32_t row
    if census.n_found == 1:
        part = chunk.whole()
        part.partition = census.found[0]
        parts.append(part)
        return
    for i in range(census.n_found):
        p = census.found[i]
        part = Slice.__new__(Slice)
        part.chunk = chunk
        part.partition = p
        part.allocate(census.counts[p])
        part.count = 0
        part.nbytes = census.sizes[p]
        parts.append(part)
        census.counts[p] = <uint32_t>i      # from now on the index of the slice
    for row in range(census.rows):
        if has_ended(&chunk.rows[row]):
            continue
        p = partition_or_unknown(&chunk.rows[row], census.partitions)
        part = <Slice>parts[census.counts[p]]
        part.rows[part.count] = row
        part.count += 1


cdef inline int32_t partition_or_unknown(const Row *row, int32_t partitions) noexcept nogil:
    return row.partition if 0 <= row.partition < partitions else partitions
