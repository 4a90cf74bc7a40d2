# What a row table holds once its rows are through, and how a handle looks at its row.
#
# A row table is in one of three states. Open or under way: Rows. Every row reported, and
# handles or errors left: Outcomes (`compact`). Every row reported and nobody left to ask:
# none. Whoever walks over Rows does so under the lock, and asks `over()` first, or has
# pinned the chunk. A handle looks at its one row with the GIL alone, so the table changes
# state with the GIL and under the lock.

cdef void compress(Chunk chunk) noexcept nogil:
    """32 of a row's 64 bytes are enough for the handles that are kept."""
    cdef size_t size = chunk.count * sizeof(Outcome)
    cdef Outcome *smaller = <Outcome *>new_memory(size)
    # Without memory it is done in place: a row's 32 bytes are read before they are overwritten.
    cdef Outcome *outcomes = smaller if smaller != NULL else <Outcome *>chunk.rows
    cdef Outcome outcome
    cdef Row *row
    cdef uint32_t i
    for i in range(chunk.count):
        row = &chunk.rows[i]
        outcome.timestamp = row.timestamp
        outcome.offset = row.deadline
        outcome.key_size = row.key_size
        outcome.value_size = row.value_size
        outcome.partition = row.partition
        outcome.error = row.error
        outcome.flags = row.flags
        outcome.holders = row.holders
        outcomes[i] = outcome
    chunk.compact = True
    if smaller != NULL:
        free_memory(chunk.rows, chunk.table)
        chunk.rows = <Row *>smaller
        chunk.table = size


cdef uint8_t *flags_at(Chunk chunk, uint32_t row) noexcept nogil:
    if chunk.compact:
        return &(<Outcome *>chunk.rows)[row].flags
    return &chunk.rows[row].flags


cdef uint8_t *holders_at(Chunk chunk, uint32_t row) noexcept nogil:
    if chunk.compact:
        return &(<Outcome *>chunk.rows)[row].holders
    return &chunk.rows[row].holders


cdef uint8_t flags_of(Chunk chunk, uint32_t row) noexcept:
    if chunk.rows == NULL:
        return SETTLED              # delivered, reported, and no handle is left
    return load_flags(flags_at(chunk, row))


cdef object error_of(Chunk chunk, uint32_t row):
    """Return a copy of a failed row's error, for a caller.

    The chunk keeps the error itself, and the garbage collector does not see the chunk: raising it
    would keep the caller's frames alive with it (``_frames.py``).
    """
    return _behaviour.copied(chunk.errors[outcome_of(chunk, row).error])


cdef Outcome outcome_of(Chunk chunk, uint32_t row) noexcept:
    cdef Outcome outcome
    cdef Row *r
    if chunk.rows == NULL:
        memset(&outcome, 0, sizeof(Outcome))
        outcome.partition = -1
        outcome.flags = SETTLED
        return outcome
    if chunk.compact:
        return (<Outcome *>chunk.rows)[row]
    r = &chunk.rows[row]
    outcome.flags = load_flags(&r.flags)
    outcome.timestamp = r.timestamp
    outcome.offset = r.deadline if outcome.flags & SETTLED else -1
    outcome.key_size = r.key_size
    outcome.value_size = r.value_size
    outcome.partition = r.partition
    outcome.error = r.error
    outcome.holders = r.holders
    return outcome
