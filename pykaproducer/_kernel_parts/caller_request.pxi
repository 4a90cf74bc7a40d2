# The request of a caller, in the order of its life. See caller.pxi.

cdef bint drive_if_idle(TopicSlot slot, Chunk chunk) except -1:
    """Send the messages of *slot*, to which one was appended in *chunk*, if that is possible now.

    Returns whether the slot need not be announced: they are sent, or wait for a response. Every
    500 ms it is announced all the same, so that the dispatcher does not consider the topic idle.
    """
    cdef int64_t now
    if not CALLERS_MAY_SEND or runs_stages or slot.route is None or not slot.route.drives:
        return False
    if not slot.has(chunk):
        return False                    # a finalizer's send() has sent it, or a stage has taken it
    if waits_for_response(slot):
        return True
    if slot.chunk is not chunk or not drive(slot):
        return False
    now = kernel_clock(0)
    if now - slot.announced_at > _ANNOUNCE_EVERY:
        slot.announced_at = now
        return False
    return True


cdef bint waits_for_response(TopicSlot slot) noexcept:
    """Return whether the messages of *slot* wait for a response, and are sent then.

    So they collect while a request is in flight, and no thread is woken. None is overlooked:

    1. this finds the request in flight, and adds the slot (at once, for it holds the GIL);
    2. the response is settled, by a caller or by the Bridge; or it is not here soon: then the timer
       wakes the Bridge, which takes the request over;
    3. the caller, before it returns, or the Bridge, before it waits, sends what the slots have or
       has them announced.
    """
    cdef CallerLink link
    if slot.last_path is None:
        return False
    link = slot.last_path.link
    if link.request is None or link.request.state != OF_CALLER:
        return False
    if link.round_trip * _NS > _SOON:
        return False
    if slot not in link.waiting:
        try:
            link.waiting.append(slot)
        except MemoryError:
            return False
        if len(link.waiting) == 1:      # later ones must not put it off
            set_timer(link.timer, _SOON)
    slot.announced = True
    return True


cdef bint drive(TopicSlot slot) except -1:
    """Send the messages of *slot*, if the stages have nothing to do with them.

    Returns whether they are sent. The Bridge reads the response, unless a caller waits for it.
    """
    cdef Chunk chunk = slot.chunk
    cdef ProduceRequest request
    if slot.route is None or chunk is None or not is_usual(slot, chunk):
        return False
    if chunk.earliest - kernel_clock(0) <= _CALLER_LEAST or not slot.route.is_valid():
        return False
    request = prepared(slot, chunk)
    return request is not None and begin(slot, chunk, request)


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
    """Send the messages of *chunk*, if that is possible, and wait for the response.

    *chunk*: the open chunk of *slot*, or one that a caller has sent. *seconds*: how long to wait at
    most. Returns False if a stage reads the response. Otherwise the messages are settled, or their
    request was handed over, and the caller waits as usual.
    """
    cdef ProduceRequest request
    cdef CallerLink link
    if runs_stages or slot.route is None:
        return False
    if slot.chunk is chunk and not drive(slot):
        return False
    request = driven_request(slot)
    if request is None or part_of(request).chunk is not chunk or not has_no_callbacks(chunk):
        return False
    link = request.path.link
    if link.has_reader or link.encrypts is not None:
        return False
    wait_as_caller(request, <int>max(0, min(_CALLER_WAIT, seconds * 1000,
                                            (chunk.earliest - kernel_clock(0)) // 2000000)))
    try:
        if link.waiting and link.drive_waiting(True) is not None:
            kernel_poke(link.wakeup)
    except BaseException:               # a KeyboardInterrupt in the code of a codec
        kernel_poke(link.wakeup)
        raise
    finally:
        if request.state == OF_CALLER_SETTLED and chunk.waiters:
            wake_waiters(part_of(request))  # other threads; this may run Python code
    return True


cdef inline ProduceRequest driven_request(TopicSlot slot):
    """Return the request in flight with messages of *slot* that a caller has sent, or None."""
    cdef ProduceRequest request
    if slot.last_path is None:
        return None
    request = slot.last_path.link.request
    if request is None or request.state != OF_CALLER or part_of(request).chunk.origin is not slot:
        return None
    return request


cdef inline Slice part_of(ProduceRequest request):
    """Return the slice of the only batch of a caller's *request*."""
    return <Slice>(<BatchState>request.batches[0]).parts[0]


cdef inline bint is_usual(TopicSlot slot, Chunk chunk) noexcept:
    """Return whether *chunk* is small, and the only one of its topic that has no outcome."""
    return (slot.chunk is chunk and not slot.full and slot.in_progress == slot.reporting
            and chunk.count <= _CALLER_ROWS and chunk.nbytes <= _CALLER_BYTES)


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
        if chunk.closed or not is_one_batch(path.sealer.batcher, chunk):
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


cdef inline bint is_one_batch(Batcher batcher, Chunk chunk) noexcept:
    """Return whether the stages would not divide the rows of *chunk*: see take_slices()."""
    cdef Py_ssize_t size = chunk.nbytes + <Py_ssize_t>chunk.count * _RECORD_ALLOWANCE
    return chunk.count == 1 or (size <= batcher.batch_size
                                and chunk.count <= batcher.batch_messages)


cdef bint begin(TopicSlot slot, Chunk chunk, ProduceRequest request):
    """Take *chunk* and write *request*. Return False if anything has changed in the meantime.

    Runs no Python code, and allocates nothing once the chunk is taken.
    """
    cdef CallerPath path = request.path
    cdef CallerLink link = path.link
    cdef BatchState batch = <BatchState>request.batches[0]
    cdef BufferState buffer = path.buffer
    cdef uint32_t i
    if not is_unchanged(slot, chunk, request):
        return False
    try:
        buffer.unanswered.append(batch)
    except MemoryError:
        return False
    number_batch(buffer.sequencer, batch)
    slot.announced = False
    slot.last_path = path
    slot.chunk = None
    close_chunk(chunk)
    for i in range(chunk.count):
        chunk.rows[i].flags |= CLAIMED
    link.correlation_id = (link.correlation_id + 1) & 0x3fffffff
    request.correlation_id = link.correlation_id | 0x40000000
    path.n_sent += 1
    request.state = OF_CALLER
    link.request = path.request = request
    write_as_caller(request, batch)
    return True


cdef bint is_unchanged(TopicSlot slot, Chunk chunk, ProduceRequest request) noexcept:
    """Return whether *request* still has all rows of *chunk*, and may be written."""
    cdef CallerPath path = request.path
    cdef CallerLink link = path.link
    cdef BatchState batch = <BatchState>request.batches[0]
    cdef Slice part = <Slice>batch.parts[0]
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
    return (batch.first_sequence < 0
            or batch.first_sequence == path.buffer.sequencer.next_sequence)


cdef void write_as_caller(ProduceRequest request, BatchState batch) noexcept:
    """Write *request*. If the socket takes only a part of it, the Bridge writes the rest."""
    cdef CallerPath path = request.path
    cdef CallerLink link = path.link
    cdef Chunk chunk = (<Slice>batch.parts[0]).chunk
    cdef RequestMetrics metrics = path.settler.metrics
    cdef int64_t left = (chunk.earliest - kernel_clock(0)) // 2
    cdef bytes frame = <bytes>request.buffers[0]
    cdef iovec iov[3]
    cdef Py_ssize_t total
    cdef int count
    # Nothing else refers to it yet.
    put_be32(<uint8_t *>PyBytes_AS_STRING(frame) + 8, <uint32_t>request.correlation_id)
    # In case no caller waits for the response. An adopted request's deadlines are watched.
    left = min(left, _SOON if link.waiting else <int64_t>_CALLER_WAIT * 1000000)
    set_timer(link.timer, max(1, left))     # preparing the request may have taken long
    count = put_buffers(request.buffers, iov)
    total = size_of(iov, count)
    count_sealed(metrics, batch, request.sent, path.topic_metrics)
    count_request(metrics, request, request.sent, total, link.metrics)
    if link.encrypts is not None:
        link.to_write = True
        set_wake_event(link.wake_event)
        return
    limit_write(iov, count)
    request.written = kernel_write(link.fd, iov, count, 0)
    if request.written != total:
        link.hand_over(request, False)


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
    cdef bint waits_for_another = False
    link.has_reader = True
    set_watched(link.watch, link.watched, False)
    while request.state == OF_CALLER:
        left = (end - kernel_clock(0) + 999999) // 1000000
        if left <= 0:
            break
        fds[0].fd, fds[0].events, fds[0].revents = link.watched, 1, 0
        fds[1].fd, fds[1].events, fds[1].revents = link.wake_event, 1, 0
        if waits_for_another:
            left = 1
        with nogil:
            found = poll_once(fds, 1 if waits_for_another else 2, <int>left)
            want_gil()
        got_gil()
        if request.state != OF_CALLER:
            clear_wake_event(link.wake_event)
            break
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
        if read_response(request) != 0:
            break
    link.has_reader = False
    if link.watched >= 0:
        set_watched(link.watch, link.watched, True)
    if request.state == OF_CALLER and not settle_response(request, False):
        link.hand_over(request, False)


cdef int read_response(ProduceRequest request) noexcept:
    """Read what the socket has. Returns 1 if the response is complete, 0 if not, -1 for the rest.

    The Bridge finds the same error or end of the stream, and reports it.
    """
    cdef Py_ssize_t count
    cdef CallerLink link = request.path.link
    count = kernel_read(link.watched, request.response + request.filled,
                        sizeof(request.response) - request.filled)
    if count < 0 and is_no_room(errno):
        return 0
    if count <= 0:
        return -1
    request.filled += <int>count
    return is_whole(request)


cdef int is_whole(ProduceRequest request) noexcept:
    """Return 1 if the response is complete, 0 if not, -1 if it is too long."""
    cdef int64_t length
    if request.filled < 4:
        return 0
    length = 4 + <int64_t>get_be(request.response, 4)
    if length > <int64_t>sizeof(request.response) or request.filled > length:
        return -1
    return request.filled == length


cdef bint settle_response(ProduceRequest request, bint in_bridge) noexcept:
    """Settle *request* if its response is complete and confirms it. Returns whether it has.

    If not, the stages have to decode it. *in_bridge*: the calling thread reports what the lists of
    the request have afterwards.
    """
    cdef CallerPath path = request.path
    cdef CallerLink link = path.link
    cdef Slice part = part_of(request)
    cdef Chunk chunk = part.chunk
    cdef TopicSlot slot = chunk.origin
    cdef double now
    if not is_response_to(request) or link.watched < 0:
        return False
    if not in_bridge and not has_no_callbacks(chunk):
        return False
    # settle_request() must not leave the batch as it is, nor run Python code.
    if path.buffer.failing or path.buffer in path.settler.moved:
        return False
    if path.buffer.place not in path.settler.metrics.partitions:
        return False
    now = kernel_clock(0) / <double>_NS
    request.state = OF_CALLER_SETTLED
    link.request = path.request = None
    link.used_at = now
    link.round_trip = now - request.sent
    link.metrics.incoming.record(now, request.filled, 1)
    count_response(path.settler.metrics, request.sent, now, 0, link.metrics)
    settle_request(path.settler, request, now)
    if request.reports[0] is None:
        return True
    if has_no_callbacks(chunk) and not (in_bridge and has_waiters(chunk)):
        request.reports[0] = None
        if part.report(None):           # to a ReportTo
            request.finished[0] = chunk
    elif slot is not None:
        # The topic's next message need not wait until the Bridge or Reports has reported these.
        chunk.reporting = True
        atomic_add(&slot.reporting, 1)
    return True


cdef bint is_response_to(ProduceRequest request) noexcept:
    """Return whether the response is complete, and confirms *request*."""
    cdef const uint8_t *p = request.response
    cdef Response r
    if request.filled < 8 or request.filled != 4 + <int64_t>get_be(p, 4):
        return False
    if <int32_t>get_be(p + 4, 4) != request.correlation_id:
        return False
    r.data, r.at, r.size, r.version = p + 8, 0, request.filled - 8, request.version
    request.confirmed = confirms(request, 1, &r)
    return request.confirmed


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
