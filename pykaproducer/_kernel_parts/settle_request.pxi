# A Produce response without an error: decoded in one call, and settled in another.

@cython.final
cdef class Confirmation:
    """A response that confirms every batch of a request of *count* batches."""

    cdef int64_t *offsets               # of each batch, in their order in the request; -1: unknown
    cdef int64_t *timestamps            # LogAppendTime in ms; -1: the topic keeps the producer's
    cdef Py_ssize_t count

    def __cinit__(self, Py_ssize_t count):
        self.offsets = <int64_t *>calloc(2 * count + 1, sizeof(int64_t))
        if self.offsets == NULL:
            raise MemoryError()
        self.timestamps = self.offsets + count
        self.count = count

    def __dealloc__(self):
        free(self.offsets)

    def __len__(self):
        return self.count

    def __getitem__(self, Py_ssize_t place):
        """Return ``(base offset, timestamp)`` of the batch at *place* in the request."""
        if not 0 <= place < self.count:
            raise IndexError(f"a request of {self.count} batches has none at {place}")
        return self.offsets[place], self.timestamps[place]


# Decoding --------------------------------------------------------------------------------------

cdef struct Response:
    const uint8_t *data
    Py_ssize_t at, size             # at > size: something was read past the end
    bint flexible


cdef int64_t take_number(Response *r, int size) noexcept nogil:
    """Read a signed number of *size* bytes."""
    cdef uint64_t value
    if r.size - r.at < size:
        r.at = r.size + 1
        return -1
    value = get_be(r.data + r.at, size)
    r.at += size
    return <int64_t>(value << (64 - 8 * size)) >> (64 - 8 * size)


cdef int64_t take_length(Response *r, int size) noexcept nogil:
    """Read a length, of *size* bytes unless the version is flexible. -1 for null."""
    cdef uint64_t value = 0
    cdef uint8_t byte
    cdef int shift
    if not r.flexible:
        return take_number(r, size)
    for shift in range(0, 35, 7):
        if r.at >= r.size:
            break
        byte = r.data[r.at]
        r.at += 1
        value |= <uint64_t>(byte & 0x7f) << shift
        if byte < 0x80:
            return <int64_t>value - 1
    r.at = r.size + 1
    return -1


cdef inline bint has_no_tags(Response *r) noexcept nogil:
    """Read the number of tagged fields; return whether there are none."""
    return not r.flexible or take_length(r, 0) == -1


cdef bint is_confirmed(Response *r, int version, int64_t *offset,
                       int64_t *timestamp) noexcept nogil:
    """Read what follows the partition's number. Return whether it confirms the batch."""
    cdef int64_t code = take_number(r, 2)
    offset[0] = take_number(r, 8)
    timestamp[0] = take_number(r, 8)
    if version >= 5:
        take_number(r, 8)               # the first offset of the log
    if version >= 8 and (take_length(r, 4) != 0 or take_length(r, 2) != -1):
        return False                    # there are rejected records or a message
    return code == 0 and has_no_tags(r)


cdef inline bint is_end(Response *r) noexcept nogil:
    """Read what follows the topics. Return whether there is no throttling, and nothing else."""
    return take_number(r, 4) == 0 and has_no_tags(r) and r.at == r.size


def confirmation(int version, payload, list batches not None):
    """Decode a Produce response if it confirms all *batches* of the request, else return None.

    *payload*: the part after the correlation id. Returns None if there is anything else in it: an
    error, throttling, a new leader, a tagged field, another partition, or bytes that are missing or
    left over. Then :func:`~pykaproducer._wire.produce.decode_produce` is to decode it.
    """
    cdef Response r
    cdef Py_buffer view
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        r.data, r.at, r.size = <const uint8_t *>view.buf, 0, view.len
        r.flexible = version >= _FLEXIBLE_PRODUCE
        return decode_confirmation(&r, version, batches)
    finally:
        PyBuffer_Release(&view)


cdef Confirmation decode_confirmation(Response *r, int version, list batches):
    cdef Confirmation found = Confirmation(len(batches))
    cdef dict places = places_of(batches), in_topic
    cdef int64_t topics, partitions, offset, timestamp
    cdef Py_ssize_t left = len(batches), place
    if not has_no_tags(r):
        return None
    topics = take_length(r, 4)
    while topics > 0 and r.at <= r.size:
        topics -= 1
        in_topic = take_topic(r, places)
        if in_topic is None:
            return None
        partitions = take_length(r, 4)
        while partitions > 0 and r.at <= r.size:
            partitions -= 1
            # Without a second result of the same batch.
            number = in_topic.pop(take_number(r, 4), None)
            if number is None or not is_confirmed(r, version, &offset, &timestamp):
                return None
            place = number
            found.offsets[place], found.timestamps[place] = offset, timestamp
            left -= 1
        if not has_no_tags(r):
            return None
    if not is_end(r) or left:
        return None
    return found


cdef dict places_of(list batches):
    """Return the place of each batch by topic and partition."""
    cdef dict places = {}, in_topic = None
    cdef Py_ssize_t place
    cdef BatchState batch
    cdef str topic = None
    for place in range(len(batches)):
        batch = <BatchState?>batches[place]
        if batch.topic is not topic:
            topic = batch.topic
            in_topic = places.setdefault(topic, {})
        in_topic[batch.partition] = place
    return places


cdef dict take_topic(Response *r, dict places):
    """Read the name of a topic. Return the places of its batches; None if there is none."""
    cdef int64_t size = take_length(r, 2)
    if size < 0 or r.at > r.size or size > r.size - r.at:
        return None
    try:
        name = PyUnicode_DecodeUTF8(<const char *>r.data + r.at, size, NULL)
    except UnicodeDecodeError:
        return None
    r.at += size
    return places.get(name)


# Settling --------------------------------------------------------------------------------------

@cython.final
cdef class RequestSettler:
    """Settles confirmed batches.

    *batcher*: of the broker. *moved*: buffers that are released after a response. *errors*: the
    last errors of partitions, by (topic, partition), and *rejected*: those of topics, from which
    confirmed ones are removed. *metrics*: a ``ProducerMetrics``.
    """

    cdef Batcher batcher
    cdef set moved
    cdef dict errors, rejected
    cdef object metrics

    def __init__(self, Batcher batcher not None, set moved not None, dict errors not None,
                 dict rejected not None, metrics):
        self.batcher = batcher
        self.moved = moved
        self.errors = errors
        self.rejected = rejected
        self.metrics = metrics

    def settle(self, list batches not None, Confirmation confirmation not None, double now,
               list reports not None, list finished not None):
        """Settle *batches*, which *confirmation* confirms, unless their buffer is not ordinary.

        Returns the places of the batches that were left as they are, because their buffer has
        failed or is to be released. *reports*, an empty list, gets the slices of settled rows,
        which the caller is to report, and *finished*, another one, the chunks that are complete and
        have nothing to report. After these, both have None in the remaining places. Wakes no
        thread. Raises ValueError if *confirmation* is of another number of batches, TypeError if an
        item is not a batch, and MemoryError; what was settled before that is in the lists.
        """
        cdef list others = []
        cdef Py_ssize_t place, n_reports = 0, n_finished = 0, room = 0
        cdef BatchState batch
        cdef Slice part
        if len(confirmation) != len(batches):
            raise ValueError("the confirmation is of another request")
        for place in range(len(batches)):
            room += len((<BatchState?>batches[place]).parts)
        # There is room for all of them before a row is settled.
        reports.extend([None] * room)
        finished.extend([None] * room)
        for place in range(len(batches)):
            batch = <BatchState>batches[place]
            if batch.buffer is None or batch.buffer.failing or batch.buffer in self.moved:
                others.append(place)
                continue
            for part in self.settle_batch(batch, confirmation.offsets[place],
                                          confirmation.timestamps[place], now):
                if needs_report(part.chunk):
                    reports[n_reports] = part
                    n_reports += 1
                elif part.finish():
                    finished[n_finished] = part.chunk
                    n_finished += 1
        return others

    cdef list settle_batch(self, BatchState batch, int64_t offset, int64_t timestamp, double now):
        cdef BufferState buffer = batch.buffer
        cdef int64_t rows = 0, nbytes = 0
        cdef list settled
        partition = (batch.topic, batch.partition)
        cdef SampledStat delivered = self.metrics.partitions.get(partition)
        if delivered is None:
            delivered = self.metrics.partition(batch.topic, batch.partition)
        buffer.unanswered.remove(batch)
        if batch.first_sequence >= 0:
            record_delivered(buffer.sequencer, batch.number)
        reschedule(self.batcher, buffer)
        if self.errors:             # as LastErrors.delivered()
            self.errors.pop(partition, None)
        if self.rejected:
            self.rejected.pop(batch.topic, None)
        settled = deliver_slices(batch.parts, offset, timestamp, self.metrics.delivery, now, &rows,
                                 &nbytes)
        if settled:                 # as ProducerMetrics.batch_delivered()
            delivered.record(now, nbytes / <double>rows, rows)
        return settled


cdef bint needs_report(Chunk chunk) noexcept:
    """Return whether settled rows of *chunk* are to be reported.

    If not, no thread is to be woken, no callback to be run, and no failure to be remembered.
    """
    return has_waiters(chunk) or has_failures(chunk) or has_callbacks(chunk)
