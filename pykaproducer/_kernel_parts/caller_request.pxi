# How a caller sends a request, in the order of its life. See caller.pxi.

cdef bint drive_if_idle(TopicSlot slot, Chunk chunk) except -1:
    """Send the messages of *slot*, to which one was appended in *chunk*, if that is possible now.

    Returns whether the slot need not be announced: they are sent, linger, or wait for a response.
    """
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
    return leave_to_bridge(slot) if is_large(chunk) else drive(slot)


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
    path.link.set_timer(_LARGE_WAITS_NS)
    return True


cdef bint linger(TopicSlot slot) except -1:
    """Let the messages of *slot* linger in the open chunk. Returns False if the stages hold them.

    A caller that waits can then send them, and otherwise only the Bridge wakes up.
    """
    cdef CallerPath path = usual_path(slot)
    if path is None or space_is_wanted(slot.chunk.budget) or expires_soon(slot) \
            or not is_one_batch(path.sealer.batcher, slot.chunk) or not wait_for_turn(slot, path):
        return False
    slot.announced = False              # the next send() looks whether there are too many
    slot.last_path = path
    return True


cdef bint expires_soon(TopicSlot slot) noexcept:
    """Return whether the dispatcher must know the messages of *slot*, which linger."""
    cdef int64_t lingering = <int64_t>(slot.route.linger * _NS)
    return slot.chunk.earliest - _CALLER_LEAST_NS - kernel_clock(0) <= lingering


cdef CallerPath usual_path(TopicSlot slot):
    """Return a lent path for the messages of *slot*; None: the stages have to send them."""
    cdef CallerPath path = slot.last_path
    if not is_usual(slot, slot.chunk):
        return None
    if path is None and slot.paths:
        path = next(iter(slot.paths.values()))
    return path if path is not None and path.offered and path.link.watched >= 0 else None


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
    if chunk.earliest - kernel_clock(0) <= _CALLER_LEAST_NS or not slot.route.is_valid():
        return False
    trace = slot.route.metrics.trace
    if trace is not None:
        trace.accepted(chunk)
    request = prepared(slot, chunk)
    if request is None or not begin(slot, chunk, request):
        return False
    if request.path.link.to_write:
        write_begun(request.path.link)
    if trace is not None and request.correlation_id:    # 0: its messages wait for their turn
        trace.driven(request.path.link.broker_id, request)
    return True


cdef int write_begun(CallerLink link) except -1:
    """Encrypt and write what callers have begun, in this thread, unless another one does that."""
    cdef TlsStream stream = link.stream
    try:
        link.write_encrypted(0)
    finally:
        link.end_stream_use(stream)
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


cdef inline Slice part_of(ProduceRequest request):
    """Return the first slice of a caller's *request*. All have the rows of one chunk."""
    return <Slice>(<BatchState>request.batches[0]).parts[0]


cdef inline bint is_usual(TopicSlot slot, Chunk chunk) noexcept:
    """Return whether *chunk* has few messages, and the stages have no other one of its topic."""
    return (slot.chunk is chunk and not slot.full
            and slot.in_progress == slot.reporting + slot.driven
            and chunk.count <= _CALLER_ROWS and (chunk.count == 1 or not is_large(chunk)))


cdef inline bint is_large(Chunk chunk) noexcept:
    """Return whether *chunk* is too large to be encoded and written in send().

    Then the GIL is released meanwhile, although it may be the open chunk.
    """
    return _HEADER + chunk.nbytes + <Py_ssize_t>chunk.count * _RECORD >= _SHORT_WORK


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
        request = ProduceRequest(batches, now=now,
                                 deadline=path.window.request_deadline(batches, now))
        request.path, request.paths = <CallerPath>paths[0], paths
        request.version = path.link.version
        request.buffers = request.frame(request.version, 0, path.link.head)
        request.prepare_settling()
    except MemoryError:
        return None
    except CompressionError as error:
        if may_be_of_a_signal(error.__cause__, path.sealer.compress):
            raise error.__cause__
        return None                     # the stages fail the messages, or can compress them
    finally:
        while pins:
            pins -= 1
            unpin(chunk)
    return None if len(request.buffers) > _CALLER_BUFFERS else request


cdef bint may_be_of_a_signal(error, compress) except -1:
    """Return whether a signal handler that ran in *compress* may have raised *error*.

    Then it comes from another function than *compress* itself, or C code that this has called.
    """
    traceback = error.__traceback__
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    code = traceback.tb_frame.f_code
    return getattr(compress, "__code__", code) is not code


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
    request.path.window.sealed_at = slot.route.used_at = request.sent
    request.state = OF_CALLER
    request.slot = slot
    slot.driven += 1
    write_as_caller(request)
    return True


cdef extern from *:
    """
    /* Remove an item. As `del`, but it never fails: the list keeps its room. No other thread may
       use the list meanwhile, as it is not locked. */
    static void drop_item(PyObject *items, Py_ssize_t at) {
        PyListObject *list = (PyListObject *)items;
        PyObject *item = list->ob_item[at];
        Py_ssize_t left = Py_SIZE(list) - 1;
        memmove(list->ob_item + at, list->ob_item + at + 1, (left - at) * sizeof(item));
        Py_SET_SIZE(list, left);
        Py_DECREF(item);
    }
    """
    int list_append "PyList_Append"(PyObject *items, PyObject *item)
    void drop_item(PyObject *items, Py_ssize_t at)


cdef bint enter_request(ProduceRequest request) noexcept:
    """Add *request* and its batches to the lists in which the stages find them, or to none."""
    cdef CallerPath path
    cdef BatchState batch
    cdef Py_ssize_t i, paths = 0, batches = 0
    if not appended(request.path.link.requests, request):
        return False
    for path in request.paths:
        if not appended(path.requests, request):
            break
        paths += 1
    else:
        for batch in request.batches:
            if not appended(batch.buffer.unanswered, batch):
                break
            batches += 1
        else:
            return True
    drop(request.path.link.requests, request)
    for i in range(paths):
        drop((<CallerPath>request.paths[i]).requests, request)
    for i in range(batches):
        drop((<BatchState>request.batches[i]).buffer.unanswered, request.batches[i])
    return False


cdef void drop(list items, item) noexcept:
    """Remove *item*, if it is there. Needs no memory, which a list that shrinks may."""
    cdef Py_ssize_t i
    for i in range(len(items)):
        if items[i] is item:
            drop_item(<PyObject *>items, i)
            return


cdef bint appended(list items, item) noexcept:
    """Append *item*, and return True; or return False, as there is no memory for it.

    An ``except`` clause would need memory itself, before its first statement.
    """
    if list_append(<PyObject *>items, <PyObject *>item) < 0:
        PyErr_Clear()
        return False
    return True


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
    request.late_at = request.sent + max(0, min(_CALLER_WAIT_MS / 1000.0, (
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
        elif type(each) is Referred:
            iov[count].iov_base = <void *>(<Referred>each).data
            iov[count].iov_len = (<Referred>each).size
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
