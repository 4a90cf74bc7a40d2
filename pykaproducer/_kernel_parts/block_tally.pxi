# The delivered rows of a block by topic and partition: rows, bytes, offsets.

cdef struct Tally:
    int64_t rows, size          # delivered rows; bytes of their keys and values
    int64_t first, last         # current range of consecutive offsets; first -1: none yet


@cython.final
cdef class Tallies:
    """Delivered rows, counted in an array by partition and then moved to a dict by topic."""

    cdef dict found             # (topic, partition): [rows, bytes, [[first, last], ...]]
    cdef Tally *tallies         # by partition, of `topic`
    cdef int64_t room
    cdef object topic

    def __cinit__(self):
        self.found = {}
        self.tallies = NULL

    def __dealloc__(self):
        free(self.tallies)

    cdef begin(self, topic):
        """Begin to count rows of *topic*."""
        if topic is not self.topic:
            self.end()
            self.topic = topic

    cdef add(self, const Outcome *outcome):
        """Count a delivered row."""
        cdef Tally *tally
        if outcome.partition < 0:
            return                  # its row table is freed, so its partition is unknown
        if outcome.partition >= self.room:
            self.grow(outcome.partition + 1)
        tally = &self.tallies[outcome.partition]
        tally.rows += 1
        tally.size += max(outcome.key_size, 0) + max(outcome.value_size, 0)
        if outcome.offset < 0:
            return                  # the broker gave none: acks=0, or a duplicate that was retried
        if tally.first >= 0 and tally.last == outcome.offset - 1:
            tally.last = outcome.offset
            return
        if tally.first >= 0:
            self.move(outcome.partition)
        tally.first = tally.last = outcome.offset

    cdef uint32_t add_run(self, Chunk chunk, uint32_t i) noexcept:
        """Count delivered rows from *i* on while each offset follows its partition's last one.

        Returns the first row that does not.
        """
        enter_guard(&chunk.lock)
        if chunk.compact and chunk.rows != NULL:
            i = self.count_run(chunk, i)
        leave_guard(&chunk.lock)
        return i

    cdef uint32_t count_run(self, Chunk chunk, uint32_t i) noexcept nogil:
        """Do what :meth:`add_run` does, for a chunk with Outcomes. The caller holds its lock."""
        cdef Outcome *outcome
        cdef Tally *tally
        while i < chunk.count:
            outcome = &(<Outcome *>chunk.rows)[i]
            if outcome.flags & FAILED or not 0 <= outcome.partition < self.room:
                return i
            tally = &self.tallies[outcome.partition]
            if tally.first < 0 or outcome.offset - 1 != tally.last:
                return i
            tally.last = outcome.offset
            tally.rows += 1
            tally.size += max(outcome.key_size, 0) + max(outcome.value_size, 0)
            i += 1
        return i

    cdef grow(self, int64_t least):
        cdef int64_t room = max(least, 2 * self.room, 16), i
        cdef void *larger = realloc(self.tallies, room * sizeof(Tally))
        if larger == NULL:
            raise MemoryError()
        self.tallies = <Tally *>larger
        for i in range(self.room, room):
            clear(&self.tallies[i])
        self.room = room

    cdef move(self, int64_t partition):
        """Move the counts of *partition* to the dict."""
        cdef Tally *tally = &self.tallies[partition]
        cdef list sums = self.found.setdefault((self.topic, partition), [0, 0, []])
        sums[0] += tally.rows
        sums[1] += tally.size
        if tally.first >= 0:
            sums[2].append([tally.first, tally.last])
        clear(tally)

    cdef dict end(self):
        """Return the dict with all counts."""
        cdef int64_t i
        for i in range(self.room):
            if self.tallies[i].rows:
                self.move(i)
        return self.found


cdef void clear(Tally *tally) noexcept nogil:
    memset(tally, 0, sizeof(Tally))
    tally.first = -1
