# The row table after its rows are reported, and how a handle reads its row.
#
# A row table is in one of three states:
#
# - Rows: the chunk is open or in progress;
# - Outcomes (`compact`): every row is reported, and there are live handles or errors;
# - none (NULL): every row is reported, and there is no handle.
#
# Code that reads Rows holds the lock and checks `is_done()` first, or has pinned the chunk. The table
# changes state under the lock.

cdef void compress(Chunk chunk) noexcept nogil:
    """Replace the 64-byte Rows by 32-byte Outcomes, which is all that handles need."""
    cdef size_t size = chunk.count * sizeof(Outcome)
    cdef Outcome *smaller = <Outcome *>new_memory(size)
    # Without memory the table is converted in place: each row is read before it is overwritten.
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
        outcome.handle_count = row.handle_count
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


cdef uint8_t *handle_count_at(Chunk chunk, uint32_t row) noexcept nogil:
    if chunk.compact:
        return &(<Outcome *>chunk.rows)[row].handle_count
    return &chunk.rows[row].handle_count


cdef uint8_t flags_of(Chunk chunk, uint32_t row) noexcept:
    cdef uint8_t flags = SETTLED    # delivered and reported; no handle was left
    enter_guard(&chunk.lock)
    if chunk.rows != NULL:
        flags = flags_at(chunk, row)[0]
    leave_guard(&chunk.lock)
    return flags


cdef object error_of(Chunk chunk, uint32_t row):
    """Return a copy of a failed row's error, for a caller.

    The chunk keeps the original, and the garbage collector does not track the chunk. Raising the
    original would keep the caller's frames alive with it (``_errors/tracebacks.py``).
    """
    cdef object original
    enter_guard(&chunk.lock)
    try:
        original = chunk.errors[read_outcome(chunk, row).error]
    finally:
        leave_guard(&chunk.lock)
    return _delivery_functions.copied(original)


cdef bint has_failures(Chunk chunk) noexcept:
    """Return whether a row has failed."""
    cdef bint found
    enter_guard(&chunk.lock)
    found = chunk.failures
    leave_guard(&chunk.lock)
    return found


cdef Outcome outcome_of(Chunk chunk, uint32_t row) noexcept:
    cdef Outcome outcome
    enter_guard(&chunk.lock)
    outcome = read_outcome(chunk, row)
    leave_guard(&chunk.lock)
    return outcome


cdef Outcome read_outcome(Chunk chunk, uint32_t row) noexcept:
    """Return the outcome of *row*. The caller holds the lock."""
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
    outcome.flags = r.flags
    outcome.timestamp = r.timestamp
    outcome.offset = r.deadline if outcome.flags & SETTLED else -1
    outcome.key_size = r.key_size
    outcome.value_size = r.value_size
    outcome.partition = load_partition(&r.partition)
    outcome.error = r.error
    outcome.handle_count = r.handle_count
    return outcome
