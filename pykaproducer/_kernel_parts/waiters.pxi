# Waiters of a row: threads in result(), and functions to call with the outcome.

cdef bint add_waiter(Chunk chunk, uint32_t row, lock) except -1:
    """Have *lock* released when the row is settled. Return False if it is settled already.

    The settler (1) sets the flag, (2) looks for waiters. This function (1) adds the waiter, (2)
    looks at the flag. In any order, at least one of the two sees the other.
    """
    if flags_of(chunk, row) & SETTLED:
        return False
    # Creating a container may trigger garbage collection, and a finalizer may wait for a message of
    # this chunk. So they are created before they are needed.
    cdef dict fresh = {}
    number = row
    cdef list first = [number, lock]
    enter_guard(&chunk.lock)
    try:
        if chunk.waiters is None:
            chunk.waiters = fresh
        add_to_row(chunk.waiters, number, first, lock)
        begin_wait(chunk.budget, lock)
    finally:
        leave_guard(&chunk.lock)
    if flags_of(chunk, row) & SETTLED:
        drop_waiter(chunk, row, lock)
        return False
    return True


cdef int add_to_row(dict table, number, list first, item) except -1:
    """Add *item* to the list of row *number*; *first* is the list if it has none yet.

    Its first element is the number, which is the key: so the key is freed with the list, and not in
    the section that removes it (see "Locks" in _kernel.pyx).
    """
    cdef list items = table.get(number)
    if items is None:
        table[number] = first
    else:
        items.append(item)
    return 0


cdef drop_waiter(Chunk chunk, uint32_t row, lock):
    cdef list locks = None
    number = row
    enter_guard(&chunk.lock)
    try:
        if chunk.waiters is not None:
            locks = chunk.waiters.get(number)
        if locks is not None and remove_item(chunk.waiters, number, locks, lock):
            end_wait(chunk.budget, lock)
    finally:
        leave_guard(&chunk.lock)


cdef bint remove_item(dict table, number, list items, item) except -1:
    """Remove *item* from *items*, the list of row *number*. Return whether it was in it.

    It is found by identity, as a user's ``__eq__`` would run Python code here. The caller holds
    references to all of these.
    """
    cdef Py_ssize_t i
    for i in range(1, len(items)):
        if items[i] is item:
            if len(items) == 2:
                del table[number]       # an empty list would still count as an entry
            else:
                del items[i]
            return True
    return False


cdef bint has_waiters(Chunk chunk) noexcept:
    """Return whether a thread waits for a row."""
    cdef bint found
    enter_guard(&chunk.lock)
    found = chunk.waiters is not None and len(chunk.waiters) > 0
    leave_guard(&chunk.lock)
    return found


cdef wake_waiters(Slice settled):
    """Release the locks of the threads that wait for one of these settled rows.

    Iterates over the slice's rows or over the rows with waiters, whichever are fewer. All slices of
    a chunk together then cost no more than its rows. Raises MemoryError, and may then be called
    again: no waiter is lost.
    """
    cdef Chunk chunk = settled.chunk
    cdef list found, rows = None
    cdef Py_ssize_t waiting, n = 0
    cdef uint32_t i
    enter_guard(&chunk.lock)
    try:
        waiting = len(chunk.waiters)
        if settled.count > <uint32_t>waiting:
            rows = list(chunk.waiters)
    finally:
        leave_guard(&chunk.lock)
    found = [None] * (settled.count if rows is None else len(rows))
    try:
        if rows is None:
            for i in range(settled.count):
                found[n] = taken(chunk, chunk.waiters, settled.at(i))
                n += 1
        else:
            for row in rows:
                if flags_of(chunk, <uint32_t>row) & SETTLED:
                    found[n] = taken(chunk, chunk.waiters, row)
                    n += 1
    finally:
        release_all(chunk.budget, found)


cdef list taken(Chunk chunk, dict table, row):
    """Remove the list of *row* from *table*, one of the chunk's, and return it, or None.

    Its items follow the number of the row. Needs no memory.
    """
    enter_guard(&chunk.lock)
    try:
        return table.pop(row, None)
    finally:
        leave_guard(&chunk.lock)


cdef release_all(Budget budget, list found):
    """Release all locks in *found*, which has what :func:`taken` returned, even if one raises.

    An event loop's runs Python code, which may raise anything. In a caller that has settled the
    rows, a KeyboardInterrupt may interrupt it before it has any effect, so it is called once more,
    and the exception is raised at the end. In a stage it is not: it harms its own loop only.
    """
    cdef object failure = None
    cdef list items, others
    cdef Py_ssize_t i, j
    for i in range(len(found)):
        items = <list>found[i]
        if items is None:
            continue
        for j in range(1, len(items)):
            lock = items[j]
            if lock is None:
                continue                # released with another one
            end_wait(budget, lock)
            others = others_of_loop(budget, lock, found, i, j)
            try:
                release_lock(lock, others)
            except BaseException as error:
                failure = error
                try:
                    release_lock(lock, others)
                except BaseException:
                    pass
    if failure is not None and not runs_stages:
        raise failure


cdef int release_lock(lock, list others) except -1:
    if others is None:
        lock.release()
    else:
        lock.release_with(others)
    return 0


cdef list others_of_loop(Budget budget, lock, list found, Py_ssize_t i, Py_ssize_t j):
    """Remove the waiters of the event loop of *lock* after place *i*, *j* of *found*; return them.

    Returns None if *lock* is not a task's.
    """
    cdef list items, others
    cdef object loop
    if not isinstance(lock, TaskWaiter):
        return None
    loop = (<TaskWaiter>lock).loop
    others = []
    try:
        for i in range(i, len(found)):
            items = <list>found[i]
            for j in range(j + 1, 0 if items is None else len(items)):
                lock = items[j]
                if isinstance(lock, TaskWaiter) and (<TaskWaiter>lock).loop is loop:
                    others.append(lock)
                    items[j] = None
                    end_wait(budget, lock)
            j = 0
    except MemoryError:
        pass                            # the rest is released by itself
    return others


cdef bint add_row_callback(Chunk chunk, uint32_t row, function) except -1:
    """Have *function* called when the row is settled.

    Returns False if the row is settled already, and then the caller runs *function* itself. Uses
    the same two steps as add_waiter: add, then look. If both sides see each other, the one that
    removes the entry from the table runs it.
    """
    if flags_of(chunk, row) & SETTLED:
        return False
    cdef dict fresh = {}
    number = row
    cdef list first = [number, function]
    enter_guard(&chunk.lock)
    try:
        if chunk.done_callbacks is None:
            chunk.done_callbacks = fresh
        add_to_row(chunk.done_callbacks, number, first, function)
    finally:
        leave_guard(&chunk.lock)
    return not flags_of(chunk, row) & SETTLED or not drop_row_callback(chunk, number, function)


cdef bint watch_row(Chunk chunk, uint32_t row, function) except -1:
    """As :func:`add_row_callback`, of a message that is accepted: this waits for memory."""
    while True:
        try:
            return add_row_callback(chunk, row, function)
        except (MemoryError, SystemError):      # the latter: see _util/memory.py
            pause_for_memory()


cdef bint drop_row_callback(Chunk chunk, number, function) except -1:
    """Remove *function* from the table. Return false if the report of the row has removed it."""
    cdef list functions
    enter_guard(&chunk.lock)
    try:
        functions = chunk.done_callbacks.get(number)
        return functions is not None and remove_item(chunk.done_callbacks, number, functions,
                                                     function)
    finally:
        leave_guard(&chunk.lock)


cdef bint has_done_callbacks(Chunk chunk) noexcept:
    """Return whether a function is to be called for a row."""
    cdef bint found
    enter_guard(&chunk.lock)
    found = chunk.done_callbacks is not None and len(chunk.done_callbacks) > 0
    leave_guard(&chunk.lock)
    return found


cdef bint has_callbacks(Chunk chunk) noexcept:
    """Return whether a row of a closed chunk may have a callback to run."""
    return chunk.callbacks != NULL or has_done_callbacks(chunk)
