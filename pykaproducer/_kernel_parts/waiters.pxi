# Waiters of a row: threads in result(), and functions to call with the outcome.

cdef bint add_waiter(Chunk chunk, uint32_t row, lock) except -1:
    """Have *lock* released when the row is settled. Return False if it is settled already.

    No lock is needed. The settler (1) sets the flag, (2) looks for waiters. This function (1) adds
    the waiter, (2) looks at the flag. In any order, at least one of the two sees the other.
    """
    cdef dict fresh
    if flags_of(chunk, row) & SETTLED:
        return False
    # Creating a dict may trigger garbage collection, and a finalizer may wait for a message of this
    # chunk.
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

    Iterates over the slice's rows or over the rows with waiters, whichever are fewer. All slices of
    a chunk together then cost no more than its rows.
    """
    cdef Chunk chunk = settled.chunk
    cdef list locks = []
    cdef uint32_t i
    if settled.count <= <uint32_t>len(chunk.waiters):
        for i in range(settled.count):
            locks += chunk.waiters.pop(settled.at(i), ())
    else:
        for row in list(chunk.waiters):
            if flags_of(chunk, <uint32_t>row) & SETTLED:
                locks += chunk.waiters.pop(row, ())
    release_all(locks)


cdef release_all(list locks):
    """Release all *locks*, even if one of them raises.

    An event loop's runs Python code. In a caller that has settled the rows, a KeyboardInterrupt may
    interrupt it before it has any effect, so it is called once more.
    """
    cdef bint released
    while locks:
        lock = locks.pop(0)
        released = False
        try:
            lock.release()
            released = True
        finally:
            if not released:
                try:
                    lock.release()
                finally:
                    release_all(locks)


cdef bint add_row_callback(Chunk chunk, uint32_t row, function) except -1:
    """Have *function* called when the row is settled.

    Returns False if the row is settled already, and then the caller runs *function* itself. Uses
    the same two steps as add_waiter: add, then look. If both sides see each other, the one that
    removes the entry from the table runs it.
    """
    cdef dict fresh
    if flags_of(chunk, row) & SETTLED:
        return False
    fresh = {} if chunk.done_callbacks is None else None
    if chunk.done_callbacks is None:
        chunk.done_callbacks = fresh
    chunk.done_callbacks.setdefault(row, []).append(function)
    return not flags_of(chunk, row) & SETTLED or not drop_row_callback(chunk, row, function)


cdef bint drop_row_callback(Chunk chunk, uint32_t row, function) except -1:
    """Remove *function* from the table. Return false if the report of the row has removed it.

    It is found by identity. A user's ``__eq__`` would run Python code here, and the report might
    take the list in the meantime and call the function too.
    """
    cdef list functions = chunk.done_callbacks.get(row)
    cdef Py_ssize_t i
    for i in range(0 if functions is None else len(functions)):
        if functions[i] is function:
            if len(functions) == 1:
                chunk.done_callbacks.pop(row)   # an empty list would still require a report
            else:
                del functions[i]
            return True
    return False
