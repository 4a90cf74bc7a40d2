# The request of a caller that waits, in the order of its life. See caller.pxi.

cdef bint keep_quiet(TopicSlot slot) noexcept:
    """Return whether *slot*, which has a message, need not be announced yet.

    The last message of the topic was sent by a caller, and so will this one, probably. Waking the
    dispatcher costs more than sending the message. If no caller comes in time, the timer wakes the
    Bridge, which announces the slot. The Bridge also does that when it wakes up for another reason.
    It is waiting now, as its connection is lent. Every 500 ms the slot is announced all the same,
    so that the dispatcher does not consider the topic idle.
    """
    cdef CallerPath path
    cdef CallerLink link
    cdef int64_t now
    if not CALLERS_MAY_SEND:
        return False
    path = slot.last_path
    if path is None or not path.offered or runs_stages or slot.full:
        return False
    now = kernel_clock(0)
    if now - slot.announced_at > _ANNOUNCE_EVERY:
        slot.announced_at = now
        return False
    link = path.link
    if link.fd < 0 or link.request is not None:
        return False
    if link.quiet is None:
        link.quiet = slot
        set_timer(link.timer, _QUIET)
    return link.quiet is slot


cdef void end_quiet(TopicSlot slot) noexcept:
    """Have *slot* announced now, because no caller sends its messages."""
    if slot.last_path is not None and slot.last_path.link.quiet is slot:
        kernel_poke(slot.last_path.link.wakeup)


cdef void close_chunk(Chunk chunk) noexcept:
    """Close *chunk*, just taken from its slot: no row is appended any more."""
    enter_guard(&chunk.lock)
    chunk.trim()
    chunk.unreported = chunk.count
    chunk.closed = True
    leave_guard(&chunk.lock)
    if chunk.origin is not None:
        atomic_add(&chunk.origin.in_progress, 1)


cdef bint send_as_caller(TopicSlot slot, Chunk chunk, double seconds) except -1:
    """Send the messages of *chunk* and wait for the response, if the stages have nothing to do.

    *chunk*: the open chunk of *slot*. *seconds*: how long to wait at most. Returns False if the
    stages have to do it. Otherwise the messages are settled, or their request was handed over, and
    the caller waits as usual.
    """
    cdef ProduceRequest request = None
    cdef int64_t left = chunk.earliest - kernel_clock(0)
    if runs_stages or slot.route is None:
        return False
    if left > _CALLER_LEAST and is_usual(slot, chunk) and slot.route.is_valid():
        request = prepared(slot, chunk)
    if request is None or not begin(slot, chunk, request):
        end_quiet(slot)
        return False
    wait_as_caller(request, <int>max(0, min(_CALLER_WAIT, seconds * 1000, left // 2000000)))
    if request.state == OF_CALLER_SETTLED and chunk.waiters:
        wake_waiters(part_of(request))  # other threads; this may run Python code
    return True


cdef inline Slice part_of(ProduceRequest request):
    """Return the slice of the only batch of a caller's *request*."""
    return <Slice>(<BatchState>request.batches[0]).parts[0]


cdef inline bint is_usual(TopicSlot slot, Chunk chunk) noexcept:
    """Return whether *chunk* is the only one of its topic, and small, and has no callbacks."""
    return (slot.chunk is chunk and not slot.full and slot.in_progress == 0
            and chunk.count <= _CALLER_ROWS and chunk.nbytes <= _CALLER_BYTES
            and has_no_callbacks(chunk))


cdef inline bint has_no_callbacks(Chunk chunk) noexcept:
    """Return whether nothing is left for Reports: a ReportTo only adds to a queue."""
    cdef uint32_t i
    if chunk.done_callbacks:
        return False
    if chunk.callbacks == NULL:
        return True
    for i in range(min(chunk.count, chunk.callback_room)):
        if chunk.callbacks[i] != NULL and not is_silent(<object>chunk.callbacks[i]):
            return False
    return True


cdef inline bint is_silent(callback) noexcept:
    """Return whether *callback* is a ReportTo that wakes no thread."""
    return type(callback) is ReportTo and not (<ReportTo>callback).outcomes.waiters


cdef ProduceRequest prepared(TopicSlot slot, Chunk chunk):
    """Return the request for the rows of *chunk*, encoded; None if it is left to the stages.

    Nothing is changed but the partitions of the rows, so Python code may run in between (a
    finalizer, a codec): see begin().
    """
    cdef CallerRoute route = slot.route
    cdef ProduceRequest request
    cdef BatchState batch
    cdef CallerPath path
    cdef list parts
    cdef double now
    try:
        parts, unknown = split_chunk(chunk, route.partitioner, route.partitions, route.available)
        if len(parts) != 1 or unknown is not None or slot.paths is None:
            return None
        path = slot.paths.get((<Slice>parts[0]).partition)
        if path is None or not path.offered or path.view is not route.view or path.link.fd < 0:
            return None
        if chunk.closed:
            return None
        chunk.pins += 1                 # encode_parts() unpins it
        batch = path.sealer.encoded(path.buffer, parts, 0)
        now = kernel_clock(0) / <double>_NS
        request = ProduceRequest([batch], now=now, deadline=request_deadline(
            [batch], now, path.timeout, path.patience))
        request.path = path
        request.version = path.link.version
        request.buffers = request.frame(request.version, 0, path.link.head)
        request.prepare_settling()
    except MemoryError:
        return None
    return request


cdef Py_ssize_t _write_limit = -1       # for tests


def limit_next_write(Py_ssize_t nbytes):
    """Let the next write of a caller take at most *nbytes* bytes, for tests."""
    global _write_limit
    _write_limit = nbytes


cdef inline void limit_write(iovec *iov, int count) noexcept:
    global _write_limit
    cdef Py_ssize_t left = _write_limit
    cdef int i
    if left < 0:
        return
    for i in range(count):
        iov[i].iov_len = min(<Py_ssize_t>iov[i].iov_len, left)
        left -= iov[i].iov_len
    _write_limit = -1


cdef bint begin(TopicSlot slot, Chunk chunk, ProduceRequest request):
    """Take *chunk* and write *request*. Return False if anything has changed in the meantime.

    Runs no Python code, and allocates nothing once the chunk is taken.
    """
    cdef CallerPath path = request.path
    cdef CallerLink link = path.link
    cdef BatchState batch = <BatchState>request.batches[0]
    cdef BufferState buffer = path.buffer
    cdef Slice part = <Slice>batch.parts[0]
    cdef RequestMetrics metrics = path.settler.metrics
    cdef bytes frame = <bytes>request.buffers[0]
    cdef iovec iov[3]
    cdef Py_ssize_t total
    cdef int count
    cdef uint32_t i
    # In the child of a fork the chunk has no slot.
    if chunk.origin is not slot or not is_usual(slot, chunk) or not path.offered:
        return False
    if chunk.count != part.count:
        return False
    for i in range(part.count):
        if chunk.rows[i].partition != part.partition:
            return False
    if link.fd < 0 or link.request is not None or link.version != request.version:
        return False
    if batch.first_sequence >= 0 and batch.first_sequence != buffer.sequencer.next_sequence:
        return False
    try:
        buffer.unanswered.append(batch)
    except MemoryError:
        return False
    number_batch(buffer.sequencer, batch)
    if link.quiet is slot:
        link.quiet = None
        set_timer(link.timer, 0)
    slot.announced = False
    slot.chunk = None
    close_chunk(chunk)
    for i in range(part.count):
        chunk.rows[i].flags |= CLAIMED
    link.correlation_id = (link.correlation_id + 1) & 0x3fffffff
    request.correlation_id = link.correlation_id | 0x40000000
    # Nothing else refers to it yet.
    put_be32(<uint8_t *>PyBytes_AS_STRING(frame) + 8, <uint32_t>request.correlation_id)
    path.sent += 1
    request.state = OF_CALLER
    link.request = path.request = request
    set_watched(link.watch, link.watched, False)
    count_sealed(metrics, batch, request.sent, path.topic_metrics)
    count = put_buffers(request.buffers, iov)
    total = size_of(iov, count)
    count_request(metrics, request, request.sent, total, link.metrics)
    limit_write(iov, count)
    request.written = kernel_write(link.fd, iov, count, 0)
    if request.written != total:
        link.hand_over(request, False)
    return True


cdef int put_buffers(list buffers, iovec *iov) noexcept:
    """Fill in *iov* from the frame of a request with one batch. Return their number."""
    cdef int count = 0
    for each in buffers:
        if type(each) is RecordBatch:
            iov[count].iov_base = (<RecordBatch>each).data
            iov[count].iov_len = (<RecordBatch>each).size
        else:
            iov[count].iov_base = PyBytes_AS_STRING(each)
            iov[count].iov_len = len(<bytes>each)
        count += 1
    return count


cdef inline Py_ssize_t size_of(const iovec *iov, int count) noexcept:
    cdef Py_ssize_t size = 0
    cdef int i
    for i in range(count):
        size += iov[i].iov_len
    return size


cdef void wait_as_caller(ProduceRequest request, int patience) noexcept:
    """Wait for the response and settle it, or hand the request over."""
    cdef CallerLink link = request.path.link
    cdef int64_t end = kernel_clock(0) + <int64_t>patience * 1000000
    cdef int64_t left
    cdef pollfd fds[2]
    cdef int found
    cdef Py_ssize_t count
    cdef bint waits_for_another = False
    while request.state == OF_CALLER:
        left = (end - kernel_clock(0) + 999999) // 1000000
        if left <= 0:
            break
        fds[0].fd, fds[0].events, fds[0].revents = link.fd, 1, 0
        fds[1].fd, fds[1].events, fds[1].revents = link.wake_event, 1, 0
        if waits_for_another:
            left = 1
        with nogil:
            found = poll_once(fds, 1 if waits_for_another else 2, <int>left)
            want_gil()
        got_gil()
        if request.state != OF_CALLER:
            clear_wake_event(link.wake_event)
            return
        # The event may have been set for another caller:
        #
        # 1. a stage takes over that caller's request, and sets the event;
        # 2. this caller writes its request before the other one runs;
        # 3. the other one clears the event when it runs.
        #
        # Until then this caller waits for the socket only, for 1 ms.
        waits_for_another = fds[1].revents != 0
        if found < 0:
            break                       # a signal: its handler may run for long
        if not fds[0].revents:
            continue
        count = kernel_read(link.fd, request.response + request.filled,
                            sizeof(request.response) - request.filled)
        if count < 0 and is_no_room(errno):
            continue
        if count <= 0:
            break                       # the Bridge finds the same, and reports it
        request.filled += <int>count
        found = settle_as_caller(request)
        if found != 0:
            break
    link.hand_over(request, False)


cdef int settle_as_caller(ProduceRequest request) noexcept:
    """Settle *request* if the response confirms it.

    Returns 1 if it is settled, 0 if the response is incomplete, and -1 if the stages have to
    decode it.
    """
    cdef CallerPath path = request.path
    cdef CallerLink link = path.link
    cdef Slice part = part_of(request)
    cdef Chunk chunk = part.chunk
    cdef TopicSlot slot = chunk.origin
    cdef double now
    cdef int found = read_as_caller(request)
    if found <= 0:
        return found
    if not has_no_callbacks(chunk) or link.watched < 0:
        return -1
    # settle_batch() must not run Python code.
    if path.buffer.place not in path.settler.metrics.partitions:
        return -1
    now = kernel_clock(0) / <double>_NS
    request.state = OF_CALLER_SETTLED
    link.request = path.request = None
    link.used_at = now
    if slot is not None:
        slot.last_path = path
    set_watched(link.watch, link.watched, True)
    link.metrics.incoming.record(now, request.filled, 1)
    count_response(path.settler.metrics, request.sent, now, 0, link.metrics)
    settle_request(path.settler, request, now)
    if request.reports[0] is not None:
        part.report(None)               # a ReportTo, and threads that wait
    return 1


cdef int read_as_caller(ProduceRequest request) noexcept:
    """Read the response. Returns 1 if it confirms the batch, 0 if it is incomplete, else -1."""
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
    r.data, r.at, r.size, r.version = p + 8, 0, length - 4, request.version
    request.confirmed = confirms(request, 1, &r)
    return 1 if request.confirmed else -1


def take_callers(slots):
    """Hand over the requests of callers in these TopicSlots, and return their chunks."""
    cdef list found = []
    cdef ProduceRequest request
    cdef CallerPath path
    for slot in slots:
        for path in list(((<TopicSlot>slot).paths or {}).values()):
            request = path.link.request
            if request is not None and request.path is path:
                path.link.hand_over(request, True)
                found.append(part_of(request).chunk)
    return found
