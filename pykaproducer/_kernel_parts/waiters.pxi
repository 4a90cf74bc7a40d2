# Who waits for a row: result() in some thread, functions to be called.

cdef bint add_waiter(Chunk chunk, uint32_t row, lock) except -1:
    """False if the row is settled already; else *lock* is released when it is.

    No lock is needed. The settler (1) sets the flag, (2) looks for waiters; we (1) enter the
    waiter, (2) look at the flag. Whatever the order, one of the two sees the other.
    """
    # Making a dict may collect garbage, and a finalizer may wait for a message of this chunk.
    cdef dict fresh = {} if chunk.waiters is None else None
    if chunk.waiters is None:
        chunk.waiters = fresh
    chunk.waiters.setdefault(row, []).append(lock)
    if flags_of(chunk, row) & SETTLED:
        drop_waiter(chunk, row, lock)
        return False
    return True


cdef drop_waiter(Chunk chunk, uint32_t row, lock):
    locks = chunk.waiters.get(row)
    if locks and lock in locks:
        locks.remove(lock)
        if not locks:
            chunk.waiters.pop(row, None)


cdef wake_waiters(Chunk chunk):
    """Release the locks of those who wait for rows that are settled by now."""
    for row in list(chunk.waiters):
        if flags_of(chunk, <uint32_t>row) & SETTLED:
            for lock in chunk.waiters.pop(row, ()):
                lock.release()


cdef bint add_extra(Chunk chunk, uint32_t row, function) except -1:
    """False if the row is settled already: then the caller runs *function* itself.

    The same two-step as add_waiter: enter, then look. When both sides saw each other, the one
    that takes the entry out of the table runs it.
    """
    cdef dict fresh = {} if chunk.extras is None else None
    if chunk.extras is None:
        chunk.extras = fresh
    chunk.extras.setdefault(row, []).append(function)
    if flags_of(chunk, row) & SETTLED:
        functions = chunk.extras.get(row)
        if functions is not None and function in functions:
            functions.remove(function)
            return False
    return True
