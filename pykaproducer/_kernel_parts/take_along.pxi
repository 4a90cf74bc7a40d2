# What waits long moves its payload out of the blocks that it shares with other rows.

cdef void move_out(Chunk chunk, Slice part) noexcept nogil:
    """Move the payload of *part* out of the blocks that it shares; see Slice.take_along.

    Whoever reads a payload at this moment has pinned it: an old block is freed later then.
    Without memory, or with as many blocks as a row can name, everything stays as it is.
    """
    cdef uint32_t *shared = NULL
    cdef Block *grown
    cdef Py_ssize_t size, freed = 0
    with chunk.lock:
        if not chunk.over() and chunk.n_blocks < 0xffff:
            shared = <uint32_t *>calloc(chunk.n_blocks + 1, sizeof(uint32_t))
        if shared != NULL:
            size = find_shared(chunk, part, shared)
            grown = <Block *>realloc(chunk.blocks, (chunk.n_blocks + 1) * sizeof(Block))
            if grown != NULL:
                chunk.blocks = grown
                if size >= 0:
                    freed = move_into_last(chunk, part, shared, size)
    free(shared)
    if freed:
        chunk.budget.give_back(freed)


cdef Py_ssize_t find_shared(Chunk chunk, Slice part, uint32_t *shared) noexcept nogil:
    """Set *shared* by block: not 0 where *part* lies, and holds up a quarter more than it has.

    Returns the payload bytes of *part* in these blocks; -1 if there is no such block.
    """
    cdef uint32_t i
    cdef Row *row
    cdef Py_ssize_t size = 0
    cdef bint found = False
    for i in range(part.count):
        row = &chunk.rows[part.at(i)]
        if not row.flags & SETTLED:
            # One more than the bytes: 0 stands for none of its rows.
            shared[row.block] += <uint32_t>payload_size(row) + (shared[row.block] == 0)
    for i in range(chunk.n_blocks):
        if shared[i] and chunk.blocks[i].used <= <int64_t>(shared[i] - 1) * 5 // 4:
            shared[i] = 0
    for i in range(part.count):
        row = &chunk.rows[part.at(i)]
        if not row.flags & SETTLED and shared[row.block]:
            size += payload_size(row)
            found = True
    return size if found else -1


cdef Py_ssize_t move_into_last(Chunk chunk, Slice part, const uint32_t *shared,
                               Py_ssize_t size) noexcept nogil:
    """Move the payload of *part* in *shared* blocks to a new one; the bytes that this frees.

    A payload is counted where it lies from now on: once, although an old block keeps a copy
    of it until its other rows are through.
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
    for i in range(part.count):
        row = &chunk.rows[part.at(i)]
        if row.flags & SETTLED or not shared[row.block]:
            continue
        source = &chunk.blocks[row.block]
        length = payload_size(row)
        memcpy(p, row.key, length)          # key, value and headers lie side by side
        row.value = p + (row.value - row.key)
        row.headers = p + (row.headers - row.key)
        row.key = p
        p += length
        row.block = <uint16_t>chunk.n_blocks
        source.used -= <uint32_t>length
        source.live -= 1
        target.live += 1
        if source.live == 0 and chunk.pins == 0:
            freed += source.used
            free_block(source)
    chunk.n_blocks += 1
    return freed
