# Releasing: the memory of rows that are reported, and of a chunk when its last row is.

cdef bint let_go(Chunk chunk, Slice part) noexcept nogil:
    """Count the rows of *part* as reported and free their memory. Return true for the last."""
    cdef uint32_t i
    cdef Py_ssize_t freed = 0
    cdef bint last
    cdef Block *block
    cdef Row *row = NULL
    enter_guard(&chunk.lock)
    for i in range(part.count):
        row = &chunk.rows[part.at(i)]
        block = &chunk.blocks[row.block]
        block.live -= 1
        if block.live == 0:
            freed += free_spent(chunk, block)
    chunk.unreported -= part.count
    last = chunk.unreported == 0
    if last:
        freed += chunk.count * _ROW_COST
        if chunk.origin is not None:
            if chunk.reporting:
                atomic_add(&chunk.origin.reporting, -1)
            atomic_add(&chunk.origin.in_progress, -1)
    if row != NULL and not row.flags & FAILED:
        chunk.budget.progressed(chunk.account)
    leave_guard(&chunk.lock)
    give_back(chunk, freed)
    return last


cdef inline Py_ssize_t free_spent(Chunk chunk, Block *block) noexcept nogil:
    """Free *block*, of which no row is left, unless a reader has pinned it. Return its bytes."""
    cdef Py_ssize_t freed = block.used
    if chunk.pins or not chunk.closed:
        chunk.n_spent += 1              # see unpin()
        return 0
    free_block(block)
    chunk.n_unused += block.source != NULL
    return freed


cdef inline void give_back(Chunk chunk, int64_t freed) noexcept nogil:
    """Release bytes of *chunk*. The caller must call ``chunk.budget.wake()`` afterwards."""
    atomic_add(&chunk.account.held, -freed)
    chunk.budget.give_back(freed)


cdef unpin(Chunk chunk):
    """Unpin after reading, and free the blocks that became unused in the meantime."""
    cdef uint32_t i
    cdef Py_ssize_t freed = 0
    cdef bint done
    enter_guard(&chunk.lock)
    chunk.pins -= 1
    if chunk.pins == 0 and chunk.closed and chunk.n_spent:
        chunk.n_spent = 0
        for i in range(chunk.n_blocks):
            if chunk.blocks[i].live == 0 and chunk.blocks[i].data != NULL:
                freed += free_spent(chunk, &chunk.blocks[i])
    done = chunk.is_done()
    leave_guard(&chunk.lock)
    if done:
        release_rows(chunk)
    release_sources(chunk)
    if freed:
        give_back(chunk, freed)
        chunk.budget.wake()


cdef release_rows(Chunk chunk):
    """Free the row table once all rows are reported and unpinned, or shrink it for handles."""
    cdef TopicSlot slot = None      # freed when this returns, without the lock
    enter_guard(&chunk.lock)
    if chunk.is_done():
        slot = chunk.origin
        chunk.origin = None            # handles must not keep what it refers to
        if not (chunk.pins or chunk.compact or chunk.rows == NULL):
            if chunk.held or chunk.failures:
                compress(chunk)
            else:
                free_memory(chunk.rows, chunk.table)
                chunk.rows = NULL
    leave_guard(&chunk.lock)


cdef uint32_t next_to_keep(Slice part, uint32_t i) noexcept:
    """Return the first row from *i* on that has failed and has a handle, or their number."""
    cdef Row *row
    enter_guard(&part.chunk.lock)
    while i < part.count:
        row = &part.chunk.rows[part.at(i)]
        if row.flags & FAILED and row.handle_count:
            break
        i += 1
    leave_guard(&part.chunk.lock)
    return i
