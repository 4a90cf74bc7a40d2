# A checksum of rows that does not depend on their order: the sum of a 64-bit hash of each.
#
# An exactly-once write compares the rows of a batch with those of its replay. They need not
# come in the same order, nor in the same record batches.
#
# The hash is not keyed and not cryptographic. Source of its steps: "xxHash fast digest algorithm",
# XXH64, the part for inputs of less than 32 bytes, with each cell's size in front of its bytes.

cdef extern from *:
    """
    #define PK_PRIME_1 0x9E3779B185EBCA87ULL
    #define PK_PRIME_2 0xC2B2AE3D27D4EB4FULL
    #define PK_PRIME_3 0x165667B19E3779F9ULL
    #define PK_PRIME_4 0x85EBCA77C2B2AE63ULL
    #define PK_PRIME_5 0x27D4EB2F165667C5ULL

    static inline uint64_t pk_rotated(uint64_t n, int bits) {
        return n << bits | n >> (64 - bits);
    }
    static inline uint64_t pk_hash_word(uint64_t hash, uint64_t word) {
        hash ^= pk_rotated(word * PK_PRIME_2, 31) * PK_PRIME_1;
        return pk_rotated(hash, 27) * PK_PRIME_1 + PK_PRIME_4;
    }
    static inline uint64_t pk_hash_bytes(uint64_t hash, const uint8_t *p, int64_t size) {
        uint64_t word;
        for (; size >= 8; p += 8, size -= 8) {
            memcpy(&word, p, 8);
            hash = pk_hash_word(hash, word);
        }
        for (; size > 0; p++, size--)
            hash = pk_rotated(hash ^ *p * PK_PRIME_5, 11) * PK_PRIME_1;
        return hash;
    }
    static inline uint64_t pk_hash_end(uint64_t hash) {
        hash = (hash ^ hash >> 33) * PK_PRIME_2;
        hash = (hash ^ hash >> 29) * PK_PRIME_3;
        return hash ^ hash >> 32;
    }
    """
    uint64_t PK_PRIME_5
    uint64_t pk_hash_word(uint64_t hash, uint64_t word) noexcept nogil
    uint64_t pk_hash_bytes(uint64_t hash, const uint8_t *p, int64_t size) noexcept nogil
    uint64_t pk_hash_end(uint64_t hash) noexcept nogil


cdef inline uint64_t hash_cell(uint64_t so_far, const Cells *cells, int64_t i) noexcept nogil:
    """Add a cell. Null differs from empty; an invalid cell counts as such, whatever it has."""
    cdef int64_t size
    cdef const uint8_t *data = cell(cells, i, &size)
    return pk_hash_bytes(pk_hash_word(so_far, <uint64_t>size), data, size)


cdef inline uint64_t hash_number(uint64_t so_far, const Numbers *numbers, int64_t i) noexcept nogil:
    cdef int64_t n = 0
    cdef Found found = NULL_NUMBER
    if numbers.there:
        found = find_number(numbers, i, &n)
    return pk_hash_word(pk_hash_word(so_far, <uint64_t>found), <uint64_t>n)


cdef uint64_t hash_headers(uint64_t so_far, const HeaderCells *headers, int64_t i) noexcept nogil:
    cdef int64_t first, last, j
    if not find_headers(headers, i, &first, &last):
        return pk_hash_word(so_far, <uint64_t>_BROKEN)
    so_far = pk_hash_word(so_far, <uint64_t>(last - first))
    for j in range(first, last):
        if is_null(headers.entries_validity, j + headers.entries_offset):
            so_far = pk_hash_word(so_far, <uint64_t>_NULL)
        else:
            so_far = hash_cell(hash_cell(so_far, &headers.key, j), &headers.value, j)
    return so_far


cdef uint64_t checksum_of_columns(Columns columns) noexcept nogil:
    cdef uint64_t total = 0, row
    cdef int64_t i
    for i in range(columns.count):
        row = hash_cell(PK_PRIME_5, &columns.value, i)
        row = hash_cell(row, &columns.key, i)
        row = hash_cell(row, &columns.topic, i)
        row = hash_number(row, &columns.partition, i)
        row = hash_number(row, &columns.timestamp, i)
        total += pk_hash_end(hash_headers(row, &columns.headers, i))
    return total


def rows_checksum(data):
    """Return the sum, modulo 2**64, of a hash of each row of a record batch.

    *data*: as for ``send_arrow()``, with ``__arrow_c_array__``. Rows that it would refuse have a
    hash as well. A column that is missing counts as one of nulls.
    """
    cdef Imported found = imported(data)
    cdef Columns columns = columns_of_batch(&found.schema, &found.array, found, 0, check=False)
    cdef uint64_t total
    with nogil:
        total = checksum_of_columns(columns)
        want_gil()
    got_gil()
    return total
