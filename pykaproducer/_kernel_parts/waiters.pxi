# Who waits for a row: result() in some thread, functions to be called.

cdef bint add_waiter(Chunk chunk, uint32_t row, lock) except -1:
    """False if the row is settled already; else *lock* is released when it is.

    No lock is needed. The settler (1) sets the flag, (2) looks for waiters; we (1) enter the
    waiter, (2) look at the flag. Whatever the order, one of the two sees the other.
    """
    cdef dict fresh
    if flags_of(chunk, row) & SETTLED:
        return False
    # Making a dict may collect garbage, and a finalizer may wait for a message of this chunk.
    fresh = {} if chunk.waiters is None else None
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


cdef wake_waiters(Slice settled):
    """Release the locks of the threads that wait for one of these settled rows.

    A walk over the fewer of the two, the slice's rows and the rows that are waited for: all slices
    of a chunk together then cost no more than its rows.
    """
    cdef Chunk chunk = settled.chunk
    cdef uint32_t i
    if settled.count <= <uint32_t>len(chunk.waiters):
        for i in range(settled.count):
            release_waiters(chunk, settled.at(i))
        return
    for row in list(chunk.waiters):
        if flags_of(chunk, <uint32_t>row) & SETTLED:
            release_waiters(chunk, row)


cdef release_waiters(Chunk chunk, row):
    for lock in chunk.waiters.pop(row, ()):
        lock.release()


cdef bint add_extra(Chunk chunk, uint32_t row, function) except -1:
    """False if the row is settled already: then the caller runs *function* itself.

    The same two-step as add_waiter: enter, then look. When both sides saw each other, the one
    that takes the entry out of the table runs it.
    """
    cdef dict fresh
    if flags_of(chunk, row) & SETTLED:
        return False
    fresh = {} if chunk.extras is None else None
    if chunk.extras is None:
        chunk.extras = fresh
    chunk.extras.setdefault(row, []).append(function)
    return not flags_of(chunk, row) & SETTLED or not drop_extra(chunk, row, function)


cdef bint drop_extra(Chunk chunk, uint32_t row, function) except -1:
    """Take *function* out of the table; false if the report of the row has taken it.

    Found by identity: a user's ``__eq__`` would run here, and the report might take the list
    in the meantime and call the function too.
    """
    cdef list functions = chunk.extras.get(row)
    cdef Py_ssize_t i
    for i in range(0 if functions is None else len(functions)):
        if functions[i] is function:
            if len(functions) == 1:
                chunk.extras.pop(row)   # an empty list would still ask for a report
            else:
                del functions[i]
            return True
    return False
