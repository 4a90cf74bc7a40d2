# Partitioning: which partition a row goes to.

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
