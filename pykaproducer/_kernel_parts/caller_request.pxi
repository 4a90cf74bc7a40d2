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
    if slot.route.linger > 0:
        return slot.chunk is chunk and linger(slot)
    if waits_for_response(slot):
        return True
    if slot.chunk is not chunk:
        return False
    if not (leave_to_bridge(slot) if is_large(chunk) else drive(slot)):
        return False
    now = kernel_clock(0)
    if now - slot.announced_at > _ANNOUNCE_EVERY:
        slot.announced_at = now
        return False
    return True


cdef bint waits_for_response(TopicSlot slot) except -1:
    """Return whether the messages of *slot* wait, because too many requests are in flight.

    So they collect, and no thread is woken. None is overlooked:

    1. this finds the requests in flight, and adds the slot (at once, for it holds the GIL);
    2. a response is settled, by a caller or by the Bridge; or the timer wakes the Bridge, because
       the next request may be written, or because the response is late;
    3. the caller, before it returns, or the Bridge, before it waits, sends what the slots have or
       has them announced.
    """
    cdef CallerPath path = slot.rests_for
    if path is not None:
        if path.link.is_resting() and path.link.watched >= 0:
            return wait_for_turn(slot, path)
        slot.rests_for = None
    path = slot.last_path
    if path is None or not path.link.is_in_use():
        return False
    return not is_open(path, kernel_clock(0) / <double>_NS) and wait_for_turn(slot, path)


cdef bint leave_to_bridge(TopicSlot slot) except -1:
    """Have the Bridge send the large message of *slot* soon, if no caller does that before.

    Encoding and writing it would take too long in send(). Returns False if that is impossible.
    """
    cdef CallerPath path = usual_path(slot)
    if path is None or path.link.fd < 0 or not wait_for_turn(slot, path):
        return False
    slot.last_path = path
    set_timer(path.link.timer, _LARGE_WAITS)
    return True


cdef bint linger(TopicSlot slot) except -1:
    """Let the messages of *slot* linger in the open chunk. Returns False if the stages have to.

    So a caller that waits can send them, and few messages wake the Bridge only.
    """
    cdef CallerPath path = usual_path(slot)
    if path is None or not is_one_batch(path.sealer.batcher, slot.chunk) \
            or not wait_for_turn(slot, path):
        return False
    slot.announced = False              # the next send() looks whether there are too many
    slot.last_path = path
    return True


cdef CallerPath usual_path(TopicSlot slot):
    """Return a path by which the messages of *slot* may be sent; None: they are not usual."""
    cdef CallerPath path = slot.last_path
    if not is_usual(slot, slot.chunk):
        return None
    if path is None and slot.paths:
        path = next(iter(slot.paths.values()))
    return path if path is not None and path.offered and path.link.watched >= 0 else None


cdef bint drive_large(TopicSlot slot) except -1:
    """Send the large message of *slot*, instead of the Bridge, for the caller that waits."""
    cdef CallerLink link = None if slot.last_path is None else slot.last_path.link
    cdef bint sent = False
    if link is None or slot not in link.waiting:
        return drive(slot)
    link.waiting.remove(slot)           # both would encode it: this may release the GIL
    try:
        sent = drive(slot)
    finally:
        if not sent and slot not in link.waiting:
            slot.announced = False      # it may have been taken
            kernel_poke(link.wakeup)
            link.waiting.append(slot)
    return sent


cdef bint is_open(CallerPath path, double now) except -1:
    """Return whether one more request of *path* may be in flight, by the rules of the stages."""
    return window_is_open(path, now) and partition_is_open(path)


cdef bint window_is_open(CallerPath path, double now) noexcept:
    """Return whether one more request may be in flight to the broker."""
    cdef double opens = opening(path.window, len(path.link.requests), False)
    return opens != _AFTER_RESPONSE and opens <= now


cdef bint partition_is_open(CallerPath path) except -1:
    """Return whether one more batch of the partition may be in flight."""
    cdef BufferState buffer = path.buffer
    # Without sequence numbers a retry would change the order: see SealedAhead.
    return not buffer.unanswered or (
        (<BatchState>buffer.unanswered[0]).first_sequence >= 0 and not buffer.sequencer.stale
        and may_follow(path.sealer.batcher, buffer, buffer.sequencer.sealed + 1))


cdef bint wait_for_turn(TopicSlot slot, CallerPath path) noexcept:
    """Have the messages of *slot* sent when *path* is open. Returns False if that is impossible."""
    cdef CallerLink link = path.link
    if slot not in link.waiting:
        try:
            link.waiting.append(slot)
        except MemoryError:
            return False
        link.set_alarm(path)
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
    if request is None or not begin(slot, chunk, request):
        return False
    if request.path.link.to_write:
        write_begun(request.path.link)
    return True


cdef int write_begun(CallerLink link) except -1:
    """Encrypt and write what callers have begun, in this thread, unless another one does that."""
    cdef TlsStream stream = link.stream
    try:
        link.write_encrypted(0)
    finally:
        link.used_by_caller(stream)
    return 0


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
    if slot.chunk is chunk:
        if chunk.budget.lingers and not would_wait_alone(chunk.budget):
            return False
        if is_large(chunk):
            drive_large(slot)
        else:
            drive(slot)
    request = driven_request(slot, chunk)
    if request is None:
        return False
    link = request.path.link
    if link.has_reader:
        return False
    wait_as_caller(request, seconds)
    try:
        if link.waiting and link.drive_waiting(True, False) is not None:
            kernel_poke(link.wakeup)
    except BaseException:               # a KeyboardInterrupt in the code of a codec
        kernel_poke(link.wakeup)
        raise
    finally:
        if request.state == OF_CALLER_SETTLED and chunk.waiters:
            wake_all_waiters(request)   # other threads; this may run Python code
    return True


cdef ProduceRequest driven_request(TopicSlot slot, Chunk chunk):
    """Return the request in flight with *chunk* that a caller has sent, or None.

    *chunk*: None stands for the oldest one of *slot*.
    """
    cdef ProduceRequest request
    cdef Chunk sent
    if slot.last_path is None:
        return None
    for request in slot.last_path.link.requests:
        sent = part_of(request).chunk
        if request.state == OF_CALLER and (sent.origin is slot if chunk is None else sent is chunk):
            return request
    return None


cdef int wake_all_waiters(ProduceRequest request) except -1:
    cdef BatchState batch
    for batch in request.batches:
        wake_waiters(<Slice>batch.parts[0])
    return 0


cdef inline Slice part_of(ProduceRequest request):
    """Return the first slice of a caller's *request*. All have the rows of one chunk."""
    return <Slice>(<BatchState>request.batches[0]).parts[0]


cdef inline bint is_usual(TopicSlot slot, Chunk chunk) noexcept:
    """Return whether *chunk* has few messages, and the stages have no other one of its topic."""
    return (slot.chunk is chunk and not slot.full
            and slot.in_progress == slot.reporting + slot.driven
            and chunk.count <= _CALLER_ROWS and (chunk.count == 1 or not is_large(chunk)))


cdef inline bint is_large(Chunk chunk) noexcept:
    """Return whether the messages of *chunk* are not sent by send() itself."""
    return chunk.nbytes > _CALLER_BYTES


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
    cdef CallerPath path = None
    cdef list parts, paths = [], batches = []
    cdef double now
    cdef Py_ssize_t pins = 0
    try:
        parts, unknown = split_chunk(chunk, route.partitioner, route.partitions, route.available)
        if unknown is not None or slot.paths is None or not 0 < len(parts) <= _CALLER_BATCHES:
            return None
        for part in parts:
            path = slot.paths.get((<Slice>part).partition)
            if path is None or not path.offered or path.view is not route.view:
                return None
            if paths and path.link is not (<CallerPath>paths[0]).link:
                return None
            paths.append(path)
        if path.link.fd < 0 or chunk.closed or not is_one_batch(path.sealer.batcher, chunk):
            return None
        # For each part at once: while one is compressed, another thread may send all of them, and
        # the rows would be freed. encode_parts() unpins the chunk once.
        pins = len(parts)
        chunk.pins += pins
        for path, part in zip(paths, parts):
            pins -= 1
            batches.append(path.sealer.encoded(path.buffer, [part], 0))
        now = kernel_clock(0) / <double>_NS
        request = ProduceRequest(batches, now=now, deadline=request_deadline(
            batches, now, path.timeout, path.patience))
        request.path, request.paths = <CallerPath>paths[0], paths
        request.version = path.link.version
        request.buffers = request.frame(request.version, 0, path.link.head)
        request.prepare_settling()
    except MemoryError:
        return None
    finally:
        while pins:
            pins -= 1
            unpin(chunk)
    return None if len(request.buffers) > _CALLER_BUFFERS else request


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

    Also returns True if the messages have to wait for their turn. Runs no Python code, and
    allocates nothing once the chunk is taken.
    """
    cdef CallerLink link = request.path.link
    cdef CallerPath path
    cdef BatchState batch
    cdef uint32_t i
    if not is_unchanged(slot, chunk, request):
        return False
    slot.last_path = request.path
    if link.requests:
        if not window_is_open(request.path, request.sent):
            return wait_for_turn(slot, request.path)
        for path in request.paths:
            if not partition_is_open(path):
                return wait_for_turn(slot, path)
    if not enter_request(request):
        return False
    for batch in request.batches:
        number_batch(batch.buffer.sequencer, batch)
    slot.announced = False
    slot.chunk = None
    link.forget_waiting(slot)
    close_chunk(chunk)
    for i in range(chunk.count):
        chunk.rows[i].flags |= CLAIMED
    link.correlation_id = (link.correlation_id + 1) & 0x3fffffff
    request.correlation_id = link.correlation_id | 0x40000000
    for path in request.paths:
        path.n_sent += 1
    request.path.window.sealed_at = request.sent
    request.state = OF_CALLER
    request.slot = slot
    slot.driven += 1
    write_as_caller(request)
    return True


cdef bint enter_request(ProduceRequest request) noexcept:
    """Add *request* and its batches to the lists in which the stages find them, or to none."""
    cdef list link = request.path.link.requests
    cdef CallerPath path
    cdef BatchState batch
    cdef Py_ssize_t i, paths = 0, batches = 0
    cdef bint entered = False
    try:
        link.append(request)
        entered = True
        for path in request.paths:
            path.requests.append(request)
            paths += 1
        for batch in request.batches:
            batch.buffer.unanswered.append(batch)
            batches += 1
        return True
    except MemoryError:
        if entered:
            link.pop()
        for i in range(paths):
            (<CallerPath>request.paths[i]).requests.pop()
        for i in range(batches):
            (<BatchState>request.batches[i]).buffer.unanswered.pop()
    return False


cdef bint is_unchanged(TopicSlot slot, Chunk chunk, ProduceRequest request) noexcept:
    """Return whether *request* still has all rows of *chunk*, and may be written."""
    cdef CallerLink link = request.path.link
    cdef CallerPath path
    cdef BatchState batch
    cdef Slice part
    cdef uint32_t i, rows = 0
    # In the child of a fork the chunk has no slot.
    if chunk.origin is not slot or not is_usual(slot, chunk):
        return False
    for path in request.paths:
        if not path.offered:
            return False
    for batch in request.batches:
        part = <Slice>batch.parts[0]
        for i in range(part.count):
            if chunk.rows[part.at(i)].partition != part.partition:
                return False
        rows += part.count
        if (batch.first_sequence >= 0
                and batch.first_sequence != batch.buffer.sequencer.next_sequence):
            return False
    return rows == chunk.count and link.fd >= 0 and link.version == request.version


cdef void write_as_caller(ProduceRequest request) noexcept:
    """Write *request*. If the socket takes only a part of it, the Bridge writes the rest."""
    cdef CallerPath path = request.path
    cdef CallerLink link = path.link
    cdef Chunk chunk = part_of(request).chunk
    cdef RequestMetrics metrics = path.settler.metrics
    cdef bytes frame = <bytes>request.buffers[0]
    cdef iovec iov[_CALLER_BUFFERS]
    cdef BatchState batch
    cdef Py_ssize_t total
    cdef int count
    # Nothing else refers to it yet.
    put_be32(<uint8_t *>PyBytes_AS_STRING(frame) + 8, <uint32_t>request.correlation_id)
    # In case no caller waits for the response. An adopted request's deadlines are watched.
    request.late_at = request.sent + max(0, min(_CALLER_WAIT / 1000.0, (
        chunk.earliest / <double>_NS - request.sent) / 2))
    link.set_alarm(path)
    count = put_buffers(request.buffers, iov)
    total = size_of(iov, count)
    for batch in request.batches:
        count_sealed(metrics, batch, request.sent, path.topic_metrics)
    count_request(metrics, request, request.sent, total, link.metrics)
    if link.stream is not None:
        link.to_write = True            # see write_begun(): it may run other threads
        return
    limit_write(iov, count)
    request.written = kernel_write(link.fd, iov, count, 0)
    if request.written != total:
        link.hand_over(False)


cdef int put_buffers(list buffers, iovec *iov) noexcept:
    """Fill in *iov* from the frame of a request. Return the number of entries."""
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


cdef int wait_as_caller(ProduceRequest request, double seconds) except -1:
    """Wait for the response and settle it, for at most *seconds*.

    Also settles what was sent before it on the connection. The Bridge continues if a signal
    arrives, whose handler may run for long; if another thread or a task waits for one of those
    messages; and if the response is late: see CallerLink.set_alarm().
    """
    cdef CallerLink link = request.path.link
    cdef Budget budget = part_of(request).chunk.budget
    link.has_reader = True
    begin_wait(budget, None)
    set_watched(link.watch, link.watched, False)
    try:
        read_until(link, request, kernel_clock(0) + <int64_t>(min(seconds, _NO_TIMEOUT) * _NS))
    finally:
        link.wake_reports()
        link.has_reader = False
        end_wait(budget, None)
        if link.watched >= 0:
            set_watched(link.watch, link.watched, True)
        if link.filled:
            kernel_poke(link.wakeup)    # what is read is not in the socket any more
    return 0


cdef int read_until(CallerLink link, ProduceRequest request, int64_t end) except -1:
    """Wait for responses and settle them, up to that of *request*, or until *end* (ns)."""
    cdef int64_t left
    cdef pollfd fds[2]
    cdef int found
    cdef bint waits_for_another = False
    while request.state == OF_CALLER:
        left = (end - kernel_clock(0) + 999999) // 1000000
        if left <= 0:
            break
        fds[0].fd, fds[0].events, fds[0].revents = link.watched, 1, 0
        fds[1].fd, fds[1].events, fds[1].revents = link.wake_event, 1, 0
        if waits_for_another:
            left = 1
        link.wake_reports()
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
            break
        if fds[0].revents and not settle_until(link, request):
            break
    return 0


cdef bint settle_until(CallerLink link, ProduceRequest request) except -1:
    """Settle what is answered, up to *request*. Return whether to wait for more."""
    cdef TlsStream stream = link.stream
    cdef ProduceRequest oldest
    cdef int found
    while request.state == OF_CALLER:
        if stream is not None and (link.fd < 0 or stream.in_use):
            return False                # the Bridge, or the thread that uses it, continues
        try:
            found = link.read()
        finally:
            link.used_by_caller(stream)
        if link.to_write:
            write_begun(link)
        if request.state != OF_CALLER:
            return False                # handed over in the meantime
        oldest = <ProduceRequest>link.requests[0]
        if found == 0:
            return True
        if found > 0 and oldest is not request and has_waiters(part_of(oldest).chunk):
            return False                # waking them may run Python code
        if found < 0 or not settle_response(oldest, False):
            link.hand_over(False)
    return False


cdef int is_whole(CallerLink link) noexcept:
    """Return 1 if the first response is complete, 0 if not, -1 if it is too long."""
    cdef int64_t length
    if link.filled < 4:
        return 0
    length = 4 + <int64_t>get_be(link.response, 4)
    if length > <int64_t>sizeof(link.response):
        return -1
    return link.filled >= length


cdef bint settle_response(ProduceRequest request, bint in_bridge) noexcept:
    """Settle *request* if its response is complete and confirms it. Returns whether it has.

    If not, the stages have to decode it. *in_bridge*: the calling thread reports what the lists of
    the request have afterwards. Otherwise the stage Reports does, but wakes no waiter.
    """
    cdef CallerPath path = request.path
    cdef CallerLink link = path.link
    cdef Slice part = part_of(request)
    cdef Chunk chunk = part.chunk
    cdef Py_ssize_t i
    cdef double now
    cdef int size
    if link.requests[0] is not request or not is_response_to(request) or link.watched < 0:
        return False
    # settle_request() must not leave a batch as it is, nor run Python code.
    for path in request.paths:
        if path.buffer.failing or path.buffer in path.settler.moved:
            return False
        if path.buffer.place not in path.settler.metrics.partitions:
            return False
    if not in_bridge and not has_no_callbacks(chunk) and not link.enter_for_reports(request):
        return False
    now = kernel_clock(0) / <double>_NS
    size = 4 + <int>get_be(link.response, 4)
    request.state = OF_CALLER_SETTLED
    del link.requests[0]                # the broker answers in order
    for path in request.paths:
        path.requests.remove(request)
    request.slot.driven -= 1
    request.slot = None
    link.filled -= size
    memmove(link.response, link.response + size, link.filled)
    link.used_at = now
    record_answer(path.window, now, request.sent)
    link.metrics.incoming.record(now, size, 1)
    count_response(path.settler.metrics, request.sent, now, 0, link.metrics)
    settle_request(path.settler, request, now)
    if request.reports[0] is None:
        return True
    begin_reporting(chunk)
    if has_no_callbacks(chunk) and not (in_bridge and has_waiters(chunk)):
        for i in range(len(request.reports)):
            if request.reports[i] is None:
                break
            part, request.reports[i] = request.reports[i], None
            if part.report(None):       # to a ReportTo
                request.finished[0] = chunk
    elif not in_bridge:
        link.pass_to_reports(request)
    return True


cdef bint is_response_to(ProduceRequest request) noexcept:
    """Return whether the first response is complete, and confirms *request*."""
    cdef CallerLink link = request.path.link
    cdef const uint8_t *p = link.response
    cdef Response r
    if is_whole(link) <= 0 or link.filled < 8:
        return False
    if <int32_t>get_be(p + 4, 4) != request.correlation_id:
        return False
    r.data, r.at, r.size, r.version = p + 8, 0, <int64_t>get_be(p, 4) - 4, request.version
    request.confirmed = confirms(request, len(request.batches), &r)
    return request.confirmed


def take_callers(slots):
    """Hand over the requests of callers in these TopicSlots, and return their chunks."""
    cdef list found = []
    cdef ProduceRequest request
    cdef CallerPath path
    for slot in slots:
        for path in list(((<TopicSlot>slot).paths or {}).values()):
            for request in path.requests:
                path.link.hand_over(True)
                if part_of(request).chunk not in found:
                    found.append(part_of(request).chunk)
    return found
