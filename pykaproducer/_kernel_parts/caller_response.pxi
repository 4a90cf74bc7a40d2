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
    cdef Response r
    if request.filled < 4:
        return 0
    length = <int64_t>get_be(p, 4)
    if length > <int64_t>sizeof(request.response) - 4:
        return -1
    if request.filled < 4 + length:
        return 0
    if request.filled > 4 + length or length < 4:
        return -1
    if <int32_t>get_be(p + 4, 4) != request.correlation_id:
        return -1
    r.data, r.at, r.size = p + 8, 0, length - 4
    r.flexible = request.path.version >= _FLEXIBLE_PRODUCE
    return 1 if confirms_one(&r, request.path, base_offset, timestamp) else -1


cdef bint confirms_one(Response *r, CallerPath path, int64_t *offset, int64_t *timestamp) noexcept:
    """Read a response, and return whether it is of *path* alone, and confirms its batch."""
    return (has_no_tags(r) and take_length(r, 4) == 1 and is_name(r, path.name)
            and take_length(r, 4) == 1 and take_number(r, 4) == path.partition
            and is_confirmed(r, path.version, offset, timestamp)
            and has_no_tags(r) and is_end(r))


cdef bint is_name(Response *r, bytes name) noexcept:
    """Read a text, and return whether it is *name*."""
    cdef int64_t size = take_length(r, 2)
    if size != len(name) or r.at > r.size or size > r.size - r.at:
        return False
    r.at += size
    return memcmp(r.data + r.at - size, PyBytes_AS_STRING(name), size) == 0
