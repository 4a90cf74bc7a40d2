# The response to the request of a caller that waits. See caller.pxi.

cdef int settle_as_caller(CallerRequest request) noexcept:
    """Settle *request* if the response is as expected.

    Returns 1 if it is settled, 0 if the response is incomplete, and -1 if it is unexpected.
    """
    cdef CallerPath path = request.path
    cdef CallerLink link = path.link
    cdef int64_t base_offset = -1, timestamp = -1
    cdef Slice part = request.part
    cdef Chunk chunk = part.chunk
    cdef int found = read_response(request, &base_offset, &timestamp)
    cdef double now
    cdef TopicSlot slot = chunk.origin
    if found <= 0:
        return found
    if not has_no_callbacks(chunk) or link.watched < 0:
        return -1
    now = kernel_clock(0) / <double>_NS
    request.state = ANSWERED
    link.request = path.request = None
    link.used_at = now
    if slot is not None:
        slot.last_path = path
    set_watched(link.watch, link.watched, True)
    settle_rows(path, part, base_offset, timestamp, now)
    count_as_caller(request, now)
    if chunk.callbacks == NULL:
        part.finish()
    else:
        part.report(None)
    return 1


cdef void settle_rows(CallerPath path, Slice part, int64_t base_offset, int64_t timestamp,
                      double now) noexcept:
    cdef Chunk chunk = part.chunk
    cdef Delivering delivering
    cdef uint32_t i
    begin_delivering(&delivering, timestamp, now)
    for i in range(part.count):
        deliver_row(chunk, i, base_offset, i, &delivering, path.delivery)
    end_run(path.delivery, &delivering.run)


cdef void count_as_caller(CallerRequest request, double now) noexcept:
    """Record what the stages record for a batch, a request and a response."""
    cdef CallerPath path = request.path
    cdef Slice part = request.part
    cdef RecordBatch batch = request.batch
    cdef double took = now - request.sent
    path.records.record(request.sent, part.count, 1)
    path.batches.record(request.sent, batch.size, 1)
    path.compression.record(request.sent, 1, 1)
    path.largest.record(request.sent, batch.largest_record, 1)
    path.queue.record(request.sent, request.sent - part.chunk.opened, part.count)
    path.requests.record(request.sent, part.count, 1)
    path.outgoing.record(request.sent, request.written, 1)
    path.incoming.record(now, request.filled, 1)
    path.request_time.record(now, took, 1)
    path.latency.record(now, took, 1)
    path.throttle.record(now, 0, 1)
    path.partition_bytes.record(now, part.nbytes / <double>part.count, part.count)


cdef int read_response(CallerRequest request, int64_t *base_offset, int64_t *timestamp) noexcept:
    """Read the response if it has one partition, as requested, and no error.

    Returns 1, 0 if it is incomplete, or -1 for anything else: the stages decode that.
    """
    cdef const uint8_t *p = request.response
    cdef int64_t length
    if request.filled < 4:
        return 0
    length = <int64_t>get_be(p, 4)
    if length > <int64_t>sizeof(request.response) - 4:
        return -1
    if request.filled < 4 + length:
        return 0
    if request.filled > 4 + length or length < len(request.path.name) + 40:
        return -1
    if <int32_t>get_be(p + 4, 4) != request.correlation_id:
        return -1
    p = read_topic(request.path, p + 8)
    if p == NULL or <int32_t>get_be(p, 4) != request.path.partition or get_be(p + 4, 2) != 0:
        return -1
    base_offset[0] = <int64_t>get_be(p + 6, 8)
    timestamp[0] = <int64_t>get_be(p + 14, 8)
    return 1 if is_expected_end(request.path, p + 22, request.response + 4 + length) else -1


cdef const uint8_t *read_topic(CallerPath path, const uint8_t *p) noexcept:
    """Return the end of the header of the only topic and partition, NULL if it is another one."""
    cdef bint flexible = path.version >= _FLEXIBLE_PRODUCE
    cdef Py_ssize_t name = len(path.name)
    if flexible:
        # No tags, one topic, its name. Lengths are one byte each, as the name is not longer.
        if name > 126 or p[0] or p[1] != 2 or p[2] != name + 1:
            return NULL
        p += 3
    else:
        if get_be(p, 4) != 1 or get_be(p + 4, 2) != <uint64_t>name:
            return NULL
        p += 6
    if memcmp(p, PyBytes_AS_STRING(path.name), name) != 0:
        return NULL
    p += name
    if flexible:
        return p + 1 if p[0] == 2 else NULL
    return p + 4 if get_be(p, 4) == 1 else NULL


cdef bint is_expected_end(CallerPath path, const uint8_t *p, const uint8_t *end) noexcept:
    """Return whether nothing unusual follows the timestamp: no error texts, no throttling."""
    if path.version >= 5:
        p += 8                          # log start offset
    if path.version >= _FLEXIBLE_PRODUCE:
        # Record errors: none; message: null; tags: none, none; throttle time: 0; tags: none.
        return (end - p == 9 and p[0] == 1 and not p[1] and not p[2] and not p[3]
                and get_be(p + 4, 4) == 0 and not p[8])
    if path.version >= 8:
        if end - p < 6 or get_be(p, 4) != 0 or get_be(p + 4, 2) != 0xffff:
            return False
        p += 6
    return end - p == 4 and get_be(p, 4) == 0
