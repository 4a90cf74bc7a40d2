# Detaching: rows that wait long move their payload out of memory that they share with other rows.

cdef void detach_rows(Chunk chunk, Slice part) noexcept nogil:
    """Move the payload of *part* out of shared blocks; see Slice.detach_payload.

    A reader of the payload has pinned it, and then the old block is freed later. Nothing is moved
    if there is no memory, or if the chunk has as many blocks as a row can address.
    """
    cdef uint32_t *shared = NULL
    cdef Block *grown
    cdef Py_ssize_t size, freed = 0
    enter_guard(&chunk.lock)
    if not chunk.is_done() and chunk.n_blocks < 0xffff:
        shared = <uint32_t *>calloc(chunk.n_blocks + 1, sizeof(uint32_t))
    if shared != NULL:
        size = find_shared(chunk, part, shared)
        grown = <Block *>realloc(chunk.blocks, (chunk.n_blocks + 1) * sizeof(Block))
        if grown != NULL:
            chunk.blocks = grown
            if size >= 0:
                freed = move_into_last(chunk, part, shared, size)
    leave_guard(&chunk.lock)
    free(shared)
    if freed:
        give_back(chunk, freed)


cdef Py_ssize_t find_shared(Chunk chunk, Slice part, uint32_t *shared) noexcept nogil:
    """Set *shared* for each block, to a value other than 0 if *part* should leave the block.

    That is the case if the block holds over a quarter more bytes than those of *part* in it, or if
    its rows refer to the objects of a block.
    Returns the payload bytes of *part* in these blocks; -1 if there is no such block.
    """
    cdef uint32_t i
    cdef Row *row
    cdef Py_ssize_t size = 0
    cdef bint found = False
    for i in range(part.count):
        row = &chunk.rows[part.at(i)]
        if not row.flags & SETTLED:
            # The bytes plus one: 0 means that the block has none of its rows.
            shared[row.block] += <uint32_t>payload_size(row) + (shared[row.block] == 0)
    for i in range(chunk.n_blocks):
        if shared[i] and chunk.blocks[i].used <= <int64_t>(shared[i] - 1) * 5 // 4 \
                and not (i == 0 and chunk.refers):
            shared[i] = 0
    for i in range(part.count):
        row = &chunk.rows[part.at(i)]
        if not row.flags & SETTLED and shared[row.block]:
            size += payload_size(row)
            found = True
    return size if found else -1


cdef Py_ssize_t move_into_last(Chunk chunk, Slice part, const uint32_t *shared,
                               Py_ssize_t size) noexcept nogil:
    """Move the payload of *part* in *shared* blocks to a new one. Return the bytes freed.

    From now on a payload is counted only in its new block, although the old block keeps a copy
    until its other rows are reported.
    """
    cdef Block *target = &chunk.blocks[chunk.n_blocks]
    cdef Block *source
    cdef uint8_t *p = <uint8_t *>new_memory(size)
    cdef uint32_t i
    cdef Py_ssize_t length, freed = 0
    cdef Row *row
    if p == NULL:
        return 0
    target.data = p
    target.capacity = target.used = <uint32_t>size
    target.live = 0
    target.source = NULL
    for i in range(part.count):
        row = &chunk.rows[part.at(i)]
        if row.flags & SETTLED or not shared[row.block]:
            continue
        source = &chunk.blocks[row.block]
        length = payload_size(row)
        p = moved(&row.key, row.key_size, p)
        p = moved(&row.value, row.value_size, p)
        p = moved(&row.headers, row.headers_size, p)
        row.block = <uint16_t>chunk.n_blocks
        source.used -= <uint32_t>length
        source.live -= 1
        target.live += 1
        if source.live == 0:
            freed += free_spent(chunk, source)
    chunk.n_blocks += 1
    return freed


cdef inline uint8_t *moved(const uint8_t **data, int32_t size, uint8_t *p) noexcept nogil:
    """Copy the *size* bytes at *data* to *p*, let *data* refer to the copy; return its end."""
    cdef uint8_t *end = put_bytes(p, data[0], size)
    data[0] = p
    return end
