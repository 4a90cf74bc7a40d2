# Settling: rows of batches that the broker has confirmed, or that were written with acks=0, and
# rows that have failed.

cdef struct Delivering:
    int64_t timestamp           # the broker's, ms; -1: the rows keep their own
    Run run                     # of the rows' ages


def deliver_parts(list parts not None, int64_t base_offset, int64_t timestamp,
                  SampledStat latency not None, double now, list settled not None):
    """Settle *parts*, the slices of one confirmed batch in its order: see ``Slice.deliver``.

    Puts slices of the rows that this call settled into *settled*, which has a None for each of
    *parts*, so that they can be reported even if this raises. Returns the number of these rows, and
    their payload bytes. Wakes no thread.
    """
    cdef int64_t rows = 0, nbytes = 0
    if len(settled) < len(parts):
        raise ValueError("settled must have a place for each part")
    list_all_rows(parts)
    deliver_slices(parts, base_offset, timestamp, latency, now, settled, 0, &rows, &nbytes)
    return rows, nbytes


cdef list_all_rows(list parts):
    """Call list_rows() for each of *parts*: deliver_slices() must not raise."""
    cdef Slice part
    for part in parts:
        list_rows(part)


cdef Py_ssize_t deliver_slices(list parts, int64_t base_offset, int64_t timestamp,
                               SampledStat latency, double now, list settled, Py_ssize_t at,
                               int64_t *rows, int64_t *nbytes):
    """Settle *parts* as :func:`deliver_parts`, and add their rows and bytes to *rows*, *nbytes*.

    Puts the slices of settled rows into *settled*, from the place *at* on, where there is room for
    each of *parts*. Returns the next place.
    """
    cdef Delivering delivering
    cdef Slice part, done
    cdef uint32_t count
    begin_delivering(&delivering, timestamp, now)
    for part in parts:
        count = part.count              # deliver_part() may empty it: see Slice.empty_part
        done = deliver_part(part, base_offset, &delivering, latency)
        if base_offset >= 0:
            base_offset = <int64_t>(<uint64_t>base_offset + count)  # unused if it overflows
        if done is not None:
            settled[at] = done
            at += 1
            rows[0] += done.count
            nbytes[0] += done.nbytes
    end_run(latency, &delivering.run)
    return at


cdef list_rows(Slice part):
    """Give *part* an array of its rows if it is a range with outcomes already.

    Then it can be settled without memory: see ``Slice.empty_part``.
    """
    cdef uint32_t *rows
    cdef uint32_t i
    # Without the GIL, a row may get its outcome after this.
    if part.rows != NULL or not (FREE_THREADED or has_settled(part)):
        return
    rows = <uint32_t *>new_numbers((part.count + 1) * sizeof(uint32_t))
    if rows == NULL:
        raise MemoryError()
    for i in range(part.count):
        rows[i] = part.start + i
    part.rows = rows


cdef bint has_settled(Slice part) noexcept:
    """Return whether a row of *part* has an outcome."""
    cdef Chunk chunk = part.chunk
    cdef bint found
    enter_guard(&chunk.lock)
    found = not chunk.is_done() and any_settled(chunk, part)
    leave_guard(&chunk.lock)
    return found


cdef bint any_settled(Chunk chunk, Slice part) noexcept nogil:
    """Return whether a row of *part* has an outcome. The caller holds the lock of *chunk*."""
    cdef uint32_t i
    for i in range(part.count):
        if chunk.rows[part.at(i)].flags & SETTLED:
            return True
    return False


cdef void begin_delivering(Delivering *delivering, int64_t timestamp, double now) noexcept:
    memset(delivering, 0, sizeof(Delivering))
    delivering.timestamp = timestamp
    delivering.run.now = now


cdef Slice deliver_part(Slice part, int64_t base_offset, Delivering *delivering,
                        SampledStat latency):
    """Settle the rows of *part*. Return a slice of those that this call settled, or None."""
    cdef Chunk chunk = part.chunk
    cdef Slice settled
    cdef uint32_t i
    if deliver_whole(part, base_offset, delivering, latency):
        return part
    settled = part.empty_part()
    enter_guard(&chunk.lock)
    for i in range(0 if chunk.is_done() else part.count):
        if chunk.rows[part.at(i)].flags & SETTLED:
            continue
        deliver_row(chunk, part.at(i), base_offset, i, delivering, latency)
        settled.rows[settled.count] = part.at(i)
        settled.count += 1
    part.size_of(settled)
    leave_guard(&chunk.lock)
    return part.settled_part(settled, False)


cdef bint deliver_whole(Slice part, int64_t base_offset, Delivering *delivering,
                        SampledStat latency) noexcept:
    """Settle all rows of *part* if none has an outcome, else none. Return whether it settled them.

    Then *part* itself is the slice of the settled rows.
    """
    cdef Chunk chunk = part.chunk
    cdef bint whole
    cdef uint32_t i
    enter_guard(&chunk.lock)
    whole = not chunk.is_done() and part.count > 0 and not any_settled(chunk, part)
    if whole:
        for i in range(part.count):
            deliver_row(chunk, part.at(i), base_offset, i, delivering, latency)
    leave_guard(&chunk.lock)
    return whole


cdef inline void deliver_row(Chunk chunk, uint32_t number, int64_t base_offset, uint32_t i,
                             Delivering *delivering, SampledStat latency) noexcept nogil:
    """Settle the unsettled row *number* at offset *i*. The caller holds the lock of *chunk*."""
    cdef Row *row = &chunk.rows[number]
    if latency is not None:
        add_age(latency, &delivering.run, as_ns(delivering.run.now) - accepted_at(chunk, row))
    row.deadline = base_offset + i if base_offset >= 0 else -1
    if delivering.timestamp >= 0:
        row.timestamp = delivering.timestamp
        add_flags(&row.flags, LOG_TIME)
    add_flags(&row.flags, SETTLED)
    chunk.n_settled += 1


cdef bint fail_part(Slice part, Slice settled, Py_ssize_t first) noexcept:
    """Settle the rows of *part* with the error at *first*, or the next one if possibly persisted.

    The caller holds the chunk's lock. Adds the rows to *settled*, and returns whether any of
    them is possibly persisted.
    """
    cdef Chunk chunk = part.chunk
    cdef uint8_t possibly = 0
    cdef uint32_t i
    cdef Row *row
    for i in range(0 if chunk.is_done() else part.count):
        row = &chunk.rows[part.at(i)]
        if row.flags & SETTLED:
            continue
        row.deadline = -1
        row.error = <uint16_t>(first + 1 if row.flags & (POSSIBLY | CLAIMED) else first)
        possibly |= row.flags & (POSSIBLY | CLAIMED)
        add_flags(&row.flags, SETTLED | FAILED)
        chunk.n_settled += 1
        chunk.failures = True
        settled.rows[settled.count] = part.at(i)
        settled.count += 1
    part.size_of(settled)
    return possibly != 0
