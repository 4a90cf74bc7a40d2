# How a caller waits for a response, and settles it as the Bridge does. See caller.pxi.

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
    try:
        wait_as_caller(request, seconds)
        if link.waiting and link.drive_waiting(False) is not None:
            kernel_poke(link.wakeup)
    except BaseException:               # a KeyboardInterrupt in the code of a codec or a trace
        kernel_poke(link.wakeup)
        raise
    finally:
        if request.state == OF_CALLER_SETTLED and chunk.waiters:
            wake_all_waiters(request)   # other threads; this may run Python code
    return True


cdef int drive_large(TopicSlot slot) except -1:
    """Send the large message of *slot*, instead of the Bridge, for the caller that waits."""
    cdef Chunk chunk = slot.chunk
    cdef CallerLink link = None if slot.last_path is None else slot.last_path.link
    cdef bint sent = False
    slot.with_caller = kernel_clock(0)  # both would encode it: this may release the GIL
    try:
        sent = drive(slot)              # or it waits for its turn
    finally:
        slot.with_caller = 0
        if not sent and slot.chunk is chunk and link is not None:
            kernel_poke(link.wakeup)    # the Bridge sends it, or announces it
    return 0


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
        if link.has_ended:
            link.close()
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
    while request.state == OF_CALLER:
        left = (end - kernel_clock(0) + 999999) // 1000000
        if left <= 0:
            break
        fds[0].fd, fds[0].events, fds[0].revents = link.watched, 1, 0
        fds[1].fd, fds[1].events, fds[1].revents = link.wake_event, 1, 0
        link.wake_reports()
        with nogil:
            found = poll_once(fds, 2, <int>left)
            want_gil()
        got_gil()
        if found < 0:
            break
        if fds[1].revents:
            clear_wake_event(link.wake_event)   # only `request.state` says that it is settled
        elif fds[0].revents and not settle_until(link, request):
            break
    return 0


cdef bint settle_until(CallerLink link, ProduceRequest request) except -1:
    """Settle what is answered, up to *request*. Return whether to wait for more."""
    cdef TlsStream stream = link.stream
    cdef ProduceRequest oldest
    cdef int found
    while request.state == OF_CALLER:
        if link.fd < 0 or link.stream_is_in_use():
            return False                # the Bridge, or the thread that uses it, continues
        try:
            found = link.read()
        except BaseException:
            link.hand_over(False)       # what a signal handler has interrupted is lost
            raise
        finally:
            link.end_stream_use(stream)
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
        else:
            trace_response(oldest)
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


cdef bint may_settle(ProduceRequest request, bint in_bridge) except -1:
    """Return whether the response of *request*, which is complete, confirms it.

    If not, the stages have to decode it. And settle_request() must not leave a batch as it is, nor
    run Python code. *in_bridge*: as for settle_response().
    """
    cdef CallerLink link = request.path.link
    cdef CallerPath path
    cdef Chunk chunk
    if link.watched < 0:
        return False
    if link.unreported is not None or not (in_bridge or link.fd >= 0):
        return False                    # the Bridge takes the connection back
    if not read_response(request):
        return False
    for path in request.paths:
        if path.buffer.failing or path.buffer in path.settler.moved:
            return False
        if path.buffer.place not in path.settler.metrics.partitions:
            return False
    # No stage is to report the chunk, or Reports can.
    chunk = part_of(request).chunk
    return in_bridge or needs_no_thread(chunk) or link.inbox.may_enter(chunk)


cdef bint settle_response(ProduceRequest request, bint in_bridge) except -1:
    """Settle *request*, unless the stages have to: see may_settle(). Returns whether it is settled.

    *in_bridge*: the calling thread reports what the lists of the request have afterwards. Otherwise
    the stage Reports does, but wakes no waiter.
    """
    cdef CallerPath path
    cdef CallerLink link = request.path.link
    cdef Slice part = part_of(request)
    cdef Chunk chunk = part.chunk
    cdef BatchState batch
    cdef Py_ssize_t i
    cdef double now
    cdef int size
    if not may_settle(request, in_bridge):
        return False
    try:
        for batch in request.batches:
            list_all_rows(batch.parts)
        if not in_bridge and not needs_no_thread(chunk):
            link.inbox.enter(chunk)
    except MemoryError:
        return False
    # From here on nothing needs memory: the request would be in no list, and without an outcome.
    now = kernel_clock(0) / <double>_NS
    size = 4 + <int>get_be(link.response, 4)
    request.state = OF_CALLER_SETTLED
    drop(link.requests, request)
    for path in request.paths:
        drop(path.requests, request)
    path = request.path
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
    if needs_no_thread(chunk) and not (in_bridge and has_waiters(chunk)):
        for i in range(len(request.reports)):
            if request.reports[i] is None:
                break
            part, request.reports[i] = request.reports[i], None
            if part.report(None):       # to a ReportTo
                request.finished[0] = chunk
    elif not in_bridge:
        link.pass_to_reports(request)
    return True


cdef int trace_response(ProduceRequest request) except -1:
    """Record the response to *request*, which is settled, if there is a trace."""
    trace = request.path.settler.metrics.trace
    if trace is not None:
        trace.confirmed(request.path.link.broker_id, request, request.path.link.used_at)
    return 0


cdef inline bint needs_no_thread(Chunk chunk) noexcept:
    """Return whether the outcome of *chunk* needs no thread.

    Each callback is a ReportTo, which only adds to a queue.
    """
    cdef uint32_t i
    if chunk.done_callbacks:
        return False
    if chunk.callbacks == NULL:
        return True
    for i in range(min(chunk.count, chunk.callback_room)):
        if chunk.callbacks[i] == NULL:
            continue
        callback = <object>chunk.callbacks[i]
        if type(callback) is not ReportTo or (<ReportTo>callback).outcomes.waiters:
            return False
    return True


cdef bint read_response(ProduceRequest request) noexcept:
    """Read the first response, which is complete. Return whether it confirms *request*."""
    cdef CallerLink link = request.path.link
    cdef const uint8_t *p = link.response
    if link.filled < 8 or <int32_t>get_be(p + 4, 4) != request.correlation_id:
        return False
    return request.read_bytes(request.version, p + 8, <int64_t>get_be(p, 4) - 4)


def take_callers(slots):
    """Hand over the requests of callers in these TopicSlots, and return their chunks."""
    cdef list found = []
    cdef ProduceRequest request
    cdef CallerPath path
    for slot in slots:
        for path in list(((<TopicSlot>slot).paths or {}).values()):
            # Not only its own: of those that a BrokerWorker has taken back, nothing else is known
            # until the Bridge adopts them.
            for request in path.link.requests:
                path.link.hand_over(True)
                if part_of(request).chunk not in found:
                    found.append(part_of(request).chunk)
    return found
