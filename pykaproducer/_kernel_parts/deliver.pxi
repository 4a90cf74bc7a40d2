# Delivering: rows of batches that the broker has confirmed.

cdef struct Delivering:
    int64_t timestamp           # the broker's, ms; -1: the rows keep their own
    int64_t now                 # ns
    Sample *sample              # of the statistic of the rows' ages; NULL: there is none
    Run run


def deliver_parts(list parts not None, int64_t base_offset, int64_t timestamp,
                  SampledStat latency not None, double now):
    """Settle *parts*, the slices of one confirmed batch in its order: see ``Slice.deliver``.

    Returns ``(settled, rows, nbytes)``: slices of the rows that this call settled, the number of
    these rows, and their payload bytes. Wakes no thread.
    """
    cdef Delivering delivering
    cdef Slice part, done
    cdef list settled = []
    cdef int64_t rows = 0, nbytes = 0
    begin_delivering(&delivering, timestamp, latency, now)
    for part in parts:
        done = deliver_part(part, base_offset, &delivering, latency)
        if base_offset >= 0:
            base_offset += part.count
        if done is not None:
            settled.append(done)
            rows += done.count
            nbytes += done.nbytes
    end_run(latency, delivering.sample, &delivering.run)
    return settled, rows, nbytes


cdef void begin_delivering(Delivering *delivering, int64_t timestamp, SampledStat latency,
                           double now) noexcept:
    memset(delivering, 0, sizeof(Delivering))
    delivering.timestamp = timestamp
    delivering.now = as_ns(now)
    delivering.sample = NULL if latency is None else latency.sample_at(now)


cdef Slice deliver_part(Slice part, int64_t base_offset, Delivering *delivering,
                        SampledStat latency):
    """Settle the rows of *part*. Return a slice of those that this call settled, or None."""
    cdef Chunk chunk = part.chunk
    cdef Slice settled
    cdef uint32_t i
    if deliver_whole(part, base_offset, delivering, latency):
        return part
    settled = part.empty_part()
    with chunk.lock:
        for i in range(0 if chunk.is_done() else part.count):
            if chunk.rows[part.at(i)].flags & SETTLED:
                continue
            deliver_row(chunk, &chunk.rows[part.at(i)],
                        base_offset + i if base_offset >= 0 else -1, delivering, latency)
            settled.rows[settled.count] = part.at(i)
            settled.count += 1
        part.size_of(settled)
    return part.settled_part(settled, False)


cdef bint deliver_whole(Slice part, int64_t base_offset, Delivering *delivering,
                        SampledStat latency) noexcept:
    """Settle the rows of *part*, unless one has an outcome already. Return whether that was done.

    Then the slice of the settled rows is *part* itself, and no other has to be made.
    """
    cdef Chunk chunk = part.chunk
    cdef uint32_t i
    with chunk.lock:
        if chunk.is_done() or part.count == 0:
            return False
        for i in range(part.count):
            if chunk.rows[part.at(i)].flags & SETTLED:
                return False
        for i in range(part.count):
            deliver_row(chunk, &chunk.rows[part.at(i)],
                        base_offset + i if base_offset >= 0 else -1, delivering, latency)
    return True


cdef inline void deliver_row(Chunk chunk, Row *row, int64_t offset, Delivering *delivering,
                             SampledStat latency) noexcept nogil:
    """Settle an unsettled row. The caller holds the lock of *chunk*."""
    if delivering.sample != NULL:
        add_age(latency, delivering.sample, &delivering.run,
                delivering.now - accepted_at(chunk, row))
    row.deadline = offset
    if delivering.timestamp >= 0:
        row.timestamp = delivering.timestamp
    add_flags(&row.flags, SETTLED)
