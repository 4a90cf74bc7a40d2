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
    cdef CallerRequest request = None
    cdef int64_t left = chunk.earliest - kernel_clock(0)
    if runs_stages or slot.route is None:
        return False
    if left > _CALLER_LEAST and is_usual(slot, chunk) and slot.route.is_valid():
        request = prepared(slot, chunk)
    if request is None or not begin(slot, chunk, request):
        end_quiet(slot)
        return False
    wait_as_caller(request, <int>max(0, min(_CALLER_WAIT, seconds * 1000, left // 2000000)))
    if request.state == ANSWERED and chunk.waiters:
        wake_waiters(request.part)      # other threads; this may run Python code
    return True


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


cdef CallerRequest prepared(TopicSlot slot, Chunk chunk):
    """Return the request for the rows of *chunk*, encoded; None if it is left to the stages.

    Nothing is changed but the partitions of the rows, so Python code may run in between (a
    finalizer): see begin().
    """
    cdef CallerRoute route = slot.route
    cdef CallerRequest request
    cdef CallerPath path
    cdef list parts
    try:
        parts, unknown = split_chunk(chunk, route.partitioner, route.partitions, route.available)
        if len(parts) != 1 or unknown is not None or slot.paths is None:
            return None
        path = slot.paths.get((<Slice>parts[0]).partition)
        if path is None or not path.offered or path.view is not route.view or path.link.fd < 0:
            return None
        request = CallerRequest.__new__(CallerRequest)
        request.path = path
        request.part = parts[0]
        if not encode_as_caller(request):
            return None
    except MemoryError:
        return None
    return request


cdef bint encode_as_caller(CallerRequest request) except -1:
    """Encode the batch and the bytes before it. Return False if the chunk has been taken."""
    cdef CallerPath path = request.path
    cdef Slice part = request.part
    cdef Chunk chunk = part.chunk
    cdef BatchHeader header
    cdef RecordBatch batch
    cdef list parts = [part]
    cdef uint32_t i
    # Give the slice its own array: settling it then needs no memory (Slice.empty_part()).
    part.allocate(part.count)
    for i in range(part.count):
        part.rows[i] = i
    if chunk.closed:
        return False
    chunk.pins += 1                     # write_records() unpins it
    batch = write_records(parts, &header)
    header.attributes = 0
    header.producer_id = path.producer_id
    header.producer_epoch = path.producer_epoch
    header.base_sequence = path.next_sequence
    batch.plain_size = batch.size
    batch.largest_record = header.largest
    put_header(batch.data, batch.size, &header)
    put_be32(batch.data + 17, <uint32_t>path.checksum(memoryview(batch)[21:]))
    request.batch = batch
    request.first_sequence = path.next_sequence
    request.head = head_for(path, batch.size)
    request.tail = path.tail
    return True


cdef bytes head_for(CallerPath path, Py_ssize_t size):
    """Return the request up to a batch of *size* bytes; the correlation id is still missing."""
    cdef bint flexible = path.version >= _FLEXIBLE_PRODUCE
    cdef Py_ssize_t known = len(path.head)
    cdef Py_ssize_t length = known + (uvarint_size(<uint32_t>size + 1) if flexible else 4)
    cdef bytes head = PyBytes_FromStringAndSize(NULL, length)
    cdef uint8_t *p = <uint8_t *>PyBytes_AS_STRING(head)
    memcpy(p, PyBytes_AS_STRING(path.head), known)
    put_be32(p, <uint32_t>(length - 4 + size + len(path.tail)))
    if flexible:
        put_uvarint(p + known, <uint32_t>size + 1)
    else:
        put_be32(p + known, <uint32_t>size)
    return head


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


cdef bint begin(TopicSlot slot, Chunk chunk, CallerRequest request):
    """Take *chunk* and write *request*. Return False if anything has changed in the meantime.

    Allocates nothing, and runs no Python code.
    """
    cdef CallerPath path = request.path
    cdef CallerLink link = path.link
    cdef Slice part = request.part
    cdef Py_ssize_t total
    cdef iovec iov[3]
    cdef uint32_t i
    cdef int64_t now
    # In the child of a fork the chunk has no slot.
    if chunk.origin is not slot or not is_usual(slot, chunk) or not path.offered:
        return False
    if chunk.count != part.count:
        return False
    for i in range(part.count):
        if chunk.rows[i].partition != path.partition:
            return False
    if link.fd < 0 or link.request is not None or path.next_sequence != request.first_sequence:
        return False
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
    put_be32(<uint8_t *>PyBytes_AS_STRING(request.head) + 8, <uint32_t>request.correlation_id)
    if path.next_sequence >= 0:
        path.next_sequence = (path.next_sequence + part.count) & 0x7fffffff
    path.number += 1
    request.number = path.number
    request.state = IN_FLIGHT
    link.request = path.request = request
    set_watched(link.watch, link.watched, False)
    iov[0].iov_base, iov[0].iov_len = PyBytes_AS_STRING(request.head), len(request.head)
    iov[1].iov_base, iov[1].iov_len = request.batch.data, request.batch.size
    iov[2].iov_base, iov[2].iov_len = PyBytes_AS_STRING(request.tail), len(request.tail)
    total = iov[0].iov_len + iov[1].iov_len + iov[2].iov_len
    now = kernel_clock(0)
    request.sent = now / <double>_NS
    limit_write(iov, 3)
    request.written = kernel_write(link.fd, iov, 3, 0)
    if request.written != total:
        link.hand_over(request, False)
    return True


cdef void wait_as_caller(CallerRequest request, int patience) noexcept:
    """Wait for the response and settle it, or hand the request over."""
    cdef CallerLink link = request.path.link
    cdef int64_t end = kernel_clock(0) + <int64_t>patience * 1000000
    cdef int64_t left
    cdef pollfd fds[2]
    cdef int found
    cdef Py_ssize_t count
    cdef bint waits_for_another = False
    while request.state == IN_FLIGHT:
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
        if request.state != IN_FLIGHT:
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


def take_callers(slots):
    """Hand over the requests of callers in these TopicSlots, and return their chunks."""
    cdef list found = []
    cdef CallerRequest request
    cdef CallerPath path
    for slot in slots:
        for path in list(((<TopicSlot>slot).paths or {}).values()):
            request = path.link.request
            if request is not None and request.path is path:
                path.link.hand_over(request, True)
                found.append(request.part.chunk)
    return found
