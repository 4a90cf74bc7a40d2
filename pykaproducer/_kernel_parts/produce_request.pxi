# A Produce request: its batches, its frame, and its response if that confirms every batch.
#
# A Bridge and a caller (caller.pxi) use it with the same functions. Any other response is decoded
# by `decode_produce()` in Python.

cdef enum RequestState:
    OF_STAGES = 0           # a Bridge writes it, and reads the response
    OF_CALLER = 1           # a caller has written it, or a part of it, and it has no outcome yet
    OF_CALLER_SETTLED = 2   # it was settled, and never handed over


cdef struct Result:
    const char *name        # of its topic, in UTF-8; the batch keeps it alive
    Py_ssize_t name_size
    int32_t partition
    int32_t following       # the next place in the same bucket; -1: none
    int64_t count           # of the records
    int64_t offset          # of its first record; -1: unknown
    int64_t timestamp       # LogAppendTime in ms; -1: the topic keeps the producer's
    bint found


@cython.final
cdef class ProduceRequest:
    """Batches for one broker, at most one of each partition.

    *now*: when it is given to the bridge or written by a caller (monotonic seconds). *deadline*:
    when the connection is considered lost if there is no response. Raises MemoryError.
    """

    cdef readonly list batches
    cdef readonly double deadline, sent
    #: How long the broker may wait for its replicas; sent in the request.
    cdef readonly int timeout_ms
    #: Bytes of its batches, and number of their records.
    cdef readonly Py_ssize_t size
    cdef int64_t rows
    #: Whether the response that was read confirms every batch.
    cdef bint confirmed
    #: Version and correlation id of a request that a caller has written.
    cdef readonly int version
    cdef readonly int32_t correlation_id
    #: The frame of such a request, and the number of its bytes that the socket has taken.
    cdef readonly list buffers
    cdef readonly Py_ssize_t written
    #: The protocol of the transaction to which the batches belong; None: to none.
    cdef public object protocol, transactional_id
    #: Set if it is the first request of this transaction; adds partitions to it in this turn.
    cdef public object first_of, turn
    # The result of each batch, and the first place in each bucket of a hash table of them.
    cdef Result *results
    cdef int32_t *buckets
    cdef uint32_t mask
    # What settling it has to report: see RequestSettler.
    cdef readonly list reports, finished
    cdef list left
    # Of a request that a caller has written.
    cdef CallerPath path                # the first of `paths`
    cdef list paths                     # of the batches
    cdef TopicSlot slot                 # while it counts the request as `driven`
    cdef RequestState state
    cdef double late_at                 # when the Bridge takes it over without a response

    def __init__(self, list batches not None, *, double now, double deadline):
        cdef BatchState batch
        self.batches = batches
        self.reports = []
        self.finished = []
        self.sent = now
        self.deadline = deadline
        self.timeout_ms = max(1, <int>((deadline - now) * 1000))
        for batch in batches:
            self.size += batch.payload.size
            self.rows += batch.count
        self.prepare_results()

    def __dealloc__(self):
        free(self.results)
        free(self.buckets)

    cdef int prepare_results(self) except -1:
        cdef Py_ssize_t place, count = len(self.batches)
        cdef uint32_t buckets = 1
        cdef int32_t *bucket
        cdef BatchState batch
        cdef Result *result
        while buckets < count:
            buckets *= 2
        self.mask = buckets - 1
        self.results = <Result *>calloc(count + 1, sizeof(Result))
        self.buckets = <int32_t *>malloc(buckets * sizeof(int32_t))
        if self.results == NULL or self.buckets == NULL:
            raise MemoryError()
        memset(self.buckets, 0xff, buckets * sizeof(int32_t))
        for place in range(count):
            batch = <BatchState?>self.batches[place]
            result = &self.results[place]
            result.name = PyUnicode_AsUTF8AndSize(batch.topic, &result.name_size)
            result.partition = batch.partition
            result.count = batch.count
            bucket = &self.buckets[
                self.bucket_of(result.name, result.name_size, result.partition)
            ]
            result.following = bucket[0]
            bucket[0] = <int32_t>place
        return 0

    cdef uint32_t bucket_of(self, const char *name, Py_ssize_t size,
                            int32_t partition) noexcept nogil:
        # FNV-1a.
        cdef uint32_t hash = 0x811c9dc5u
        cdef Py_ssize_t i
        for i in range(size):
            hash = (hash ^ <uint8_t>name[i]) * 0x01000193u
        hash = (hash ^ <uint32_t>partition) * 0x01000193u
        return (hash ^ hash >> 15) & self.mask

    cdef Result *result_of(self, const char *name, Py_ssize_t size,
                           int32_t partition) noexcept nogil:
        cdef int32_t place = self.buckets[self.bucket_of(name, size, partition)]
        cdef Result *result
        while place >= 0:
            result = &self.results[place]
            if (result.partition == partition and result.name_size == size
                    and memcmp(result.name, name, size) == 0):
                return result
            place = result.following
        return NULL

    def frame(self, int version, int32_t correlation_id, bytes head not None):
        """Return the buffers of the framed request.

        *head*: as for :func:`produce_frame`. Its timeout and correlation id are replaced.
        """
        cdef BatchState batch
        cdef list batches = []
        for batch in self.batches:
            batches.append((batch.topic, batch.partition, batch.payload))
        return produce_frame(head, correlation_id, self.timeout_ms, batches,
                             version >= _FLEXIBLE_PRODUCE)

    def result(self, Py_ssize_t place):
        """Return ``(base offset, timestamp)`` of a confirmed batch, the one at *place*."""
        if not self.confirmed or not 0 <= place < len(self.batches):
            raise IndexError(f"no confirmed batch at {place}")
        return self.results[place].offset, self.results[place].timestamp

    def read(self, int version, payload):
        """Read a response. Return whether it confirms every batch, and says nothing else.

        *payload*: the part after the correlation id. False if there is anything else in it: an
        error, throttling, a new leader, a tagged field, another partition, or bytes that are
        missing or left over. Then :func:`~pykaproducer._wire.produce.decode_produce` is to decode
        it.
        """
        cdef Py_buffer view
        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
        self.read_bytes(version, <const uint8_t *>view.buf, view.len)
        PyBuffer_Release(&view)
        return self.confirmed

    cdef bint read_bytes(self, int version, const uint8_t *data, int64_t size) noexcept:
        cdef Response r
        r.data, r.at, r.size, r.version = data, 0, size, version
        self.confirmed = confirms(self, len(self.batches), &r)
        return self.confirmed

    cpdef drop_report(self):
        """Remove the first of `reports`, which is reported. Needs no memory."""
        cdef Py_ssize_t i
        for i in range(1, len(self.reports)):
            self.reports[i - 1] = self.reports[i]
        self.reports[len(self.reports) - 1] = None

    cpdef int prepare_settling(self) except -1:
        """Make the lists of RequestSettler, so that settling the batches needs no memory."""
        cdef BatchState batch
        cdef Py_ssize_t room = 0
        if self.left is None:
            for batch in self.batches:
                room += len(batch.parts)
            self.reports = [None] * room
            self.finished = [None] * room
            self.left = []
        return 0


cdef double _NEVER = float("inf")


cdef double oldest_deadline(BatchState batch, double most):
    """Return when the first row of *batch* without an outcome expires; *most* if it is later.

    0 if each row has an outcome.
    """
    cdef double found = _NEVER
    cdef Slice part
    for part in batch.parts:
        if not part.chunk.errors and part.chunk.next_deadline >= most:
            found = min(found, most)    # cheaper: it looks at no row
        elif (deadline := part.oldest_deadline()) is not None:
            found = min(found, <double>deadline)
    return 0 if found == _NEVER else found


# The response ----------------------------------------------------------------------------------

cdef struct Response:
    const uint8_t *data
    Py_ssize_t at, size             # at > size: something was read past the end
    int version


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
    if r.version < _FLEXIBLE_PRODUCE:
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
    return r.version < _FLEXIBLE_PRODUCE or take_length(r, 0) == -1


cdef bint confirms(ProduceRequest request, Py_ssize_t count, Response *r) noexcept nogil:
    """Return whether *r* confirms each of the *count* batches of *request*, and nothing else."""
    cdef int64_t topics, partitions, size
    cdef const char *name
    cdef Result *result
    cdef Py_ssize_t place, left = count
    for place in range(count):
        request.results[place].found = False
    if not has_no_tags(r):
        return False
    topics = take_length(r, 4)
    while topics > 0 and r.at <= r.size:
        topics -= 1
        size = take_length(r, 2)
        if size < 0 or r.at > r.size or size > r.size - r.at:
            return False
        name = <const char *>r.data + r.at
        r.at += size
        partitions = take_length(r, 4)
        while partitions > 0 and r.at <= r.size:
            partitions -= 1
            result = request.result_of(name, size, <int32_t>take_number(r, 4))
            # Without a second result of the same batch.
            if result == NULL or result.found or not is_confirmed(r, result):
                return False
            left -= 1
        if not has_no_tags(r):
            return False
    # There is no throttling, and nothing else.
    return take_number(r, 4) == 0 and has_no_tags(r) and r.at == r.size and left == 0


cdef bint is_confirmed(Response *r, Result *result) noexcept nogil:
    """Read what follows the partition's number. Return whether it confirms the batch."""
    cdef int64_t code = take_number(r, 2)
    result.found = True
    result.offset = take_number(r, 8)
    result.timestamp = take_number(r, 8)
    if r.version >= 5:
        take_number(r, 8)               # the first offset of the log
    if r.version >= 8 and (take_length(r, 4) != 0 or take_length(r, 2) != -1):
        return False                    # there are rejected records or a message
    # Otherwise offsets would not fit 64 bits: check_complete() rejects the response.
    return code == 0 and result.offset <= _MOST_INT64 - result.count + 1 and has_no_tags(r)
