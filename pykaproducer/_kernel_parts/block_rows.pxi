# Blocks: many rows in one call. Measured, admitted, put into chunks, published.
#
# 1. `measure` validates every row before anything is accepted.
# 2. Bytes are reserved for the whole block, or for a piece if it is larger than buffer_memory.
# 3. `fill` puts the rows into chunks that no other thread knows yet, without the GIL. They refer to
#    bytes objects that are not short (refer.pxi); everything else is copied.
# 4. `publish` appends the chunks to those that wait in their topics' slots. On a KeyboardInterrupt
#    the block (or the piece) is either not accepted, or accepted and will be sent.

@cython.final
@cython.no_gc
cdef class Segment:
    """The rows of a block that are in one chunk."""

    cdef readonly Chunk chunk
    cdef int64_t *rows                  # row numbers in the block; NULL: first, first + 1 ...
    cdef int64_t first

    def __cinit__(self):
        self.rows = NULL

    def __dealloc__(self):
        free(self.rows)
        if self.chunk is not None:
            held_whole(self.chunk, -1)

    cdef inline int64_t number(self, uint32_t row) noexcept nogil:
        return self.rows[row] if self.rows != NULL else self.first + row


@cython.final
cdef class SentBlock:
    """The result of sending a block: the chunks of its rows, and the rows not accepted."""

    cdef readonly int64_t count
    cdef readonly list segments
    cdef readonly object refusal        # the error of the rows that were not accepted
    cdef readonly int64_t accepted      # the number of rows accepted, which come before those
    cdef public int64_t transaction     # the ordinal of that in which it began; 0: none
    cdef Py_ssize_t settled_segments    # segments known to be settled entirely
    cdef uint32_t settled_rows          # settled rows of the next segment
    cdef Guard guard                    # of these two

    def __cinit__(self):
        init_guard(&self.guard)
        self.segments = []

    def pending(self):
        """Return a handle of a row without outcome, or None if all rows are settled."""
        cdef Chunk chunk = None
        cdef uint32_t row = 0
        enter_guard(&self.guard)
        try:
            while self.settled_segments < len(self.segments):
                chunk = (<Segment>self.segments[self.settled_segments]).chunk
                row = self.settled_rows = first_unsettled(chunk, self.settled_rows)
                if row < chunk.count:
                    break
                self.settled_rows = 0
                self.settled_segments += 1
                chunk = None
        finally:
            leave_guard(&self.guard)
        return None if chunk is None else new_handle(chunk, row)

    def watch_each(self, list watchers not None):
        """Have ``watchers[row](handle)`` called for each accepted row when it is settled.

        A watcher runs in the Reports thread, or now if its row is settled already. Returns the
        watchers of the rows that were not accepted.
        """
        cdef Segment segment
        cdef uint32_t i
        for segment in self.segments:
            for i in range(segment.chunk.count):
                with cython.boundscheck(True):      # a watcher is Python code
                    watcher = watchers[segment.number(i)]
                if not watch_row(segment.chunk, i, watcher):
                    watcher(new_handle(segment.chunk, i))
        return watchers[self.accepted:]

    def failures(self):
        """Return the number of rows that have failed so far, without marking them as observed."""
        cdef Segment segment
        cdef uint32_t i
        cdef int64_t n = self.count - self.accepted
        for segment in self.segments:
            for i in range(segment.chunk.count if has_failures(segment.chunk) else 0):
                n += flags_of(segment.chunk, i) & FAILED != 0
        return n

    def outcomes(self):
        """Return ``(delivered, failed)`` of the settled rows, and mark their outcomes as observed.

        *delivered* maps (topic, partition) to ``[rows, bytes, [[first, last], ...]]``, with the
        offset ranges in row order. *failed* lists ``(row, error)``, in row order. Rows that failed
        together share an error. Each call creates new error objects.
        """
        cdef Segment segment
        cdef uint32_t i
        cdef Outcome outcome
        cdef Tallies tallies = Tallies.__new__(Tallies)
        cdef list failed = []
        cdef dict copies
        for segment in self.segments:
            copies = {}
            tallies.begin(segment.chunk.topic)
            i = 0
            while True:
                i = tallies.add_run(segment.chunk, i)
                if i == segment.chunk.count:
                    break
                outcome = outcome_of(segment.chunk, i)
                if outcome.flags & FAILED:
                    observe(segment.chunk, i)
                    if outcome.error not in copies:
                        copies[outcome.error] = error_of(segment.chunk, i)
                    failed.append((segment.number(i), copies[outcome.error]))
                elif outcome.flags & SETTLED:
                    tallies.add(&outcome)
                i += 1
        failed.sort(key=_first_of)
        if self.accepted < self.count:
            refusal = _delivery_functions.copied(self.refusal)
            for row in range(self.accepted, self.count):
                failed.append((row, refusal))
        return tallies.end(), failed


def _first_of(pair):
    return pair[0]


cdef held_whole(Chunk chunk, int change):
    """Count a reference to the whole chunk as a handle, but not as a handle of any row."""
    cdef uint8_t unused = 1
    enter_guard(&chunk.lock)
    hold(&chunk.held, &unused, change)
    leave_guard(&chunk.lock)


cdef uint32_t first_unsettled(Chunk chunk, uint32_t row) noexcept:
    """Return the first row from *row* on that has no outcome, or the number of rows."""
    enter_guard(&chunk.lock)
    if chunk.compact or chunk.rows == NULL:
        row = chunk.count               # all of them are reported
    while row < chunk.count and chunk.rows[row].flags & SETTLED:
        row += 1
    leave_guard(&chunk.lock)
    return row


# -- one row of columns ------------------------------------------------------------------------

cdef inline int64_t look_at_row(Columns columns, int64_t i, Payload *payload) noexcept nogil:
    """Reference key and value of row *i* and return its payload size in bytes.

    Returns _NULL if a header has no name, _BROKEN if a cell is outside its column's data.
    """
    cdef int64_t size, headers
    payload.data[0] = cell(&columns.key, i, &size)
    payload.size[0] = size
    payload.total = size if size > 0 else 0
    if size == _BROKEN:
        return _BROKEN
    payload.data[1] = cell(&columns.value, i, &size)
    payload.size[1] = size
    payload.total += size if size > 0 else 0
    if size == _BROKEN:
        return _BROKEN
    payload.data[2] = cell(&columns.encoded, i, &size)
    payload.size[2] = size if size > 0 else 0
    if columns.headers.there:
        headers = headers_size(&columns.headers, i)
        if headers < 0:
            return headers
        payload.size[2] = headers
    payload.total += payload.size[2]
    return payload.total


cdef int64_t measure(Columns columns, int64_t most, int64_t *total) noexcept nogil:
    """Sum up the payload bytes of all rows. Return the first invalid or too large row, or -1."""
    cdef int64_t i, size
    cdef Payload payload
    total[0] = 0
    columns.most = most - _HEADER - _RECORD
    for i in range(columns.count):
        size = look_at_row(columns, i, &payload)
        if not 0 <= size <= columns.most:
            return i
        total[0] += size
    return -1


cdef int64_t piece_end(Columns columns, int64_t start, int64_t room, int64_t *cost) noexcept nogil:
    """Return the end of the piece from *start* of at most *room* bytes, or of one row.

    That is *start* itself if the row has changed since it was measured, and is not valid any more.
    """
    cdef int64_t i, size
    cdef Payload payload
    cost[0] = 0
    for i in range(start, columns.count):
        size = look_at_row(columns, i, &payload)
        if not 0 <= size <= columns.most or (i > start and cost[0] + size + _ROW_COST > room):
            return i
        cost[0] += size + _ROW_COST
    return columns.count


cdef enum Filled:
    _FILLED = 0
    _NO_MEMORY = -1
    _CHANGED = -2               # a cell is not as it was when it was measured or checked


cdef inline Filled fill_row(Chunk chunk, Columns columns, int64_t i, Payload *payload,
                            const Terms *terms, int64_t now) noexcept nogil:
    """Add row *i*, which *payload* refers to, to *chunk*."""
    cdef Row *row
    cdef int64_t given
    cdef Found found
    cdef Filled filled = _FILLED
    if not chunk.refers:
        filled = copy_row(chunk, columns, i, payload)
    elif not add_reference(chunk, payload):
        filled = _NO_MEMORY
    if filled != _FILLED:
        return filled
    row = &chunk.rows[chunk.count]
    put_terms(chunk, row, terms, now)
    if columns.partition.there:
        found = number_up_to(&columns.partition, i, _MOST_PARTITION, &given)
        if found == NO_NUMBER:
            return _CHANGED
        if found == NUMBER:
            row.partition = <int32_t>given
    if columns.timestamp.there:
        found = number_up_to(&columns.timestamp, i, _MOST_TIMESTAMP, &given)
        if found == NO_NUMBER:
            return _CHANGED
        if found == NUMBER:
            row.timestamp = given
    chunk.nbytes += payload.total
    chunk.count += 1
    return _FILLED


cdef inline Filled copy_row(Chunk chunk, Columns columns, int64_t i,
                            Payload *payload) noexcept nogil:
    """Copy row *i* into *chunk*."""
    cdef Row *row = chunk.new_row(False)
    cdef uint8_t *p = chunk.room(payload.total) if row != NULL else NULL
    cdef int64_t size = payload.size[2]
    if p == NULL:
        return _NO_MEMORY
    if columns.headers.there and size:
        payload.data[2] = NULL
        if not put_headers(&columns.headers, i, p + payload.total - size, size):
            return _CHANGED
    put_payload(row, p, payload)
    row.block = <uint16_t>chunk.filling
    return _FILLED


# -- topics: the rows of a block may belong to several ---------------------------------------------

@cython.final
cdef class Routes:
    """The topic slots of a block, and the slot of each row."""

    cdef list slots
    cdef int32_t *route                 # slot index by row; NULL: the first slot for all rows
    cdef PyObject **open                # by slot: the segment being filled, or NULL
    cdef list names                     # by slot: its topic as bytes, if rows name their topics
    cdef int32_t *places                # hash table of slot indices by name; -1: empty
    cdef uint32_t mask                  # its size - 1

    def __cinit__(self):
        self.route = NULL
        self.open = NULL
        self.places = NULL
        self.slots = []
        self.names = []

    def __dealloc__(self):
        free(self.route)
        free(self.open)
        free(self.places)

    cdef by_row(self, int64_t count):
        """Prepare for rows that name their topics."""
        self.route = <int32_t *>malloc((count + 1) * sizeof(int32_t))
        if self.route == NULL:
            raise MemoryError()
        self.make_places(64)

    cdef add(self, slot, bytes name):
        """Add the slot of a topic that rows name."""
        self.slots.append(slot)
        self.names.append(name)
        if 2 * len(self.names) > self.mask:
            self.make_places(4 * (self.mask + 1))
        else:
            self.put_place(<int32_t>len(self.names) - 1)

    cdef make_places(self, uint32_t size):
        cdef int32_t i
        free(self.places)
        self.places = <int32_t *>malloc(size * sizeof(int32_t))
        if self.places == NULL:
            raise MemoryError()
        memset(self.places, 0xff, size * sizeof(int32_t))
        self.mask = size - 1
        for i in range(<int32_t>len(self.names)):
            self.put_place(i)

    cdef put_place(self, int32_t i):
        cdef bytes name = self.names[i]
        self.places[self.place_of(<const uint8_t *>PyBytes_AS_STRING(name), len(name))] = i

    cdef uint32_t place_of(self, const uint8_t *data, int64_t size) noexcept nogil:
        """Return the position of this name in the hash table, or the one at which to insert it."""
        cdef uint32_t place = kafka_fnv1a(data, <int32_t>size) & self.mask
        cdef PyObject *name
        while self.places[place] >= 0:
            name = list_item(<PyObject *>self.names, self.places[place])
            if bytes_size(name) == size and memcmp(bytes_data(name), data, size) == 0:
                break
            place = (place + 1) & self.mask
        return place

    cdef begin(self):
        """Begin a piece, without open segments."""
        free(self.open)
        self.open = <PyObject **>calloc(len(self.slots) + 1, sizeof(PyObject *))
        if self.open == NULL:
            raise MemoryError()

    cdef open_one(self, int32_t route, Segment segment):
        """Fill *segment* from now on. (The caller owns it.)"""
        if self.route != NULL:
            segment.rows = <int64_t *>malloc(_CHUNK_ROWS * sizeof(int64_t))
            if segment.rows == NULL:
                raise MemoryError()
        self.open[route] = <PyObject *>segment


cdef int64_t find_routes(Routes routes, Columns columns, int64_t start) noexcept nogil:
    """Route rows from *start* on. Return the first with a null or new topic, or their count."""
    cdef int64_t i, size
    cdef int32_t slot
    cdef const uint8_t *data
    for i in range(start, columns.count):
        data = cell(&columns.topic, i, &size)
        if size < 0:
            return i
        slot = routes.places[routes.place_of(data, size)]
        if slot < 0:
            return i
        routes.route[i] = slot
    return columns.count


cdef int64_t fill(Routes routes, Columns columns, int64_t start, int64_t end, int64_t base,
                  const Terms *terms, int64_t now, int64_t *left) noexcept nogil:
    """Add rows up to *end* to chunks. Return the first row without a chunk with room, or *end*.

    *left*: the remaining reserved bytes. Returns _CHANGED if the rows differ from those that were
    measured, because another thread writes to the memory of a column, and _NO_MEMORY.
    """
    cdef int64_t i
    cdef int32_t route = 0
    cdef Payload payload
    cdef Filled filled
    for i in range(start, end):
        if not 0 <= look_at_row(columns, i, &payload) <= columns.most \
                or payload.total + _ROW_COST > left[0]:
            return _CHANGED
        if routes.route != NULL:
            route = routes.route[i]
        if routes.open[route] == NULL:
            return i
        if (<Segment>routes.open[route]).chunk.count \
                and not has_room((<Segment>routes.open[route]).chunk, &payload):
            return i
        if routes.route != NULL:
            (<Segment>routes.open[route]).rows[(<Segment>routes.open[route]).chunk.count] = base + i
        filled = fill_row((<Segment>routes.open[route]).chunk, columns, i, &payload, terms, now)
        if filled != _FILLED:
            return filled
        left[0] -= payload.total + _ROW_COST
    return end
