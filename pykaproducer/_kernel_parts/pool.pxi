# Memory that is used again: the largest blocks of payload, and whole row tables.
#
# malloc() takes pieces of this size from the system and gives them back to it. Each page of them
# is then a fault and is cleared, which was a sixth of the processor time of a loop over send().
# So some are kept here, for all producers of the process: at most _SPARE_BLOCKS and _SPARE_TABLES.

cdef extern from *:
    """
    #define SPARE_BLOCKS 32
    #define SPARE_TABLES 4

    static void *spare_blocks[SPARE_BLOCKS];
    static void *spare_tables[SPARE_TABLES];

    static void *take_spare(void **spares, int count) {
        for (int i = 0; i < count; i++) {
            if (__atomic_load_n(&spares[i], __ATOMIC_RELAXED) != NULL) {
                void *found = __atomic_exchange_n(&spares[i], NULL, __ATOMIC_ACQUIRE);
                if (found != NULL) return found;
            }
        }
        return NULL;
    }
    static void *new_piece(void **spares, int count, size_t size) {
        void *found = take_spare(spares, count);
        return found != NULL ? found : malloc(size);
    }
    static void keep_piece(void **spares, int count, void *piece) {
        for (int i = 0; i < count; i++) {
            void *none = NULL;
            if (__atomic_compare_exchange_n(&spares[i], &none, piece, 0, __ATOMIC_RELEASE,
                                            __ATOMIC_RELAXED)) return;
        }
        free(piece);
    }
    static inline void *new_largest_block(size_t size) {
        return new_piece(spare_blocks, SPARE_BLOCKS, size);
    }
    static inline void keep_largest_block(void *block) {
        keep_piece(spare_blocks, SPARE_BLOCKS, block);
    }
    static inline void *new_whole_table(size_t size) {
        return new_piece(spare_tables, SPARE_TABLES, size);
    }
    static inline void keep_whole_table(void *table) {
        keep_piece(spare_tables, SPARE_TABLES, table);
    }
    """
    void *new_largest_block(size_t size) noexcept nogil
    void keep_largest_block(void *block) noexcept nogil
    void *new_whole_table(size_t size) noexcept nogil
    void keep_whole_table(void *table) noexcept nogil


cdef uint8_t *new_block(uint32_t capacity) noexcept nogil:
    """Memory for payload; NULL if there is none."""
    if capacity == _LARGEST_BLOCK:
        return <uint8_t *>new_largest_block(capacity)
    return <uint8_t *>malloc(capacity if capacity else 1)


cdef void free_block(Block *block) noexcept nogil:
    """Give the memory of *block* back. (Its capacity says where it is from.)"""
    if block.data != NULL and block.capacity == _LARGEST_BLOCK:
        keep_largest_block(block.data)
    else:
        free(block.data)
    block.data = NULL
    block.used = 0


cdef Row *grown_table(Row *rows, uint32_t count, uint32_t capacity) noexcept nogil:
    """A table for *capacity* rows with the *count* that are in *rows*; NULL if there is no memory:
    then *rows* stays as it is."""
    cdef Row *whole
    if capacity < _CHUNK_ROWS:
        return <Row *>realloc(rows, capacity * sizeof(Row))
    whole = <Row *>new_whole_table(capacity * sizeof(Row))
    if whole != NULL:
        memcpy(whole, rows, count * sizeof(Row))
        free(rows)
    return whole


cdef void free_table(Row *rows, uint32_t capacity) noexcept nogil:
    """Give a table of *capacity* rows back."""
    if rows != NULL and capacity == _CHUNK_ROWS:
        keep_whole_table(rows)
    else:
        free(rows)
