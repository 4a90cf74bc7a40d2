# The connection of a Bridge, as callers use it: see caller.pxi. And the Bridge's wait, in which it
# settles and reports what callers have sent.

@cython.final
cdef class CallerLink:
    """The connection of a Bridge, as callers use it. Linux only: otherwise it is never usable.

    The Bridge waits for ``watch`` instead of its socket. It becomes readable with the socket,
    except while a caller waits for the response, and when the timer expires.

    With TLS, another thread may run while a caller encrypts or decrypts. See `tls.pxi`.
    """

    cdef object __weakref__
    cdef int broker_id
    cdef bint has_ended                 # the Bridge has
    cdef readonly int watch             # an epoll descriptor; -1: not available
    cdef int wake_event                 # wakes the caller that waits for the response
    cdef int timer                      # wakes the Bridge if the response is late
    cdef double rings_at                # when it expires (monotonic seconds); 0: unknown
    cdef int watched                    # the socket in `watch`; -1: none
    cdef TlsStream stream               # of the connection, if it has TLS; else None
    cdef bint to_write                  # requests are to be encrypted and written
    cdef bint is_unwatched              # disabled in `watch` until a caller's call of OpenSSL ends
    cdef bint awaits_stream             # the Bridge waits for `stream_is_free`
    cdef WakeEvent stream_is_free
    cdef int fd                         # the socket while it is lent; -1: it is not
    cdef int wakeup                     # a socket; a byte in it wakes the Bridge
    cdef int32_t correlation_id
    cdef int version                    # of requests
    cdef bytes head                     # of requests, for produce_frame()
    cdef ConnectionMetrics metrics
    cdef readonly list requests         # written, and not settled yet, oldest first
    cdef uint8_t response[2048]         # what was read of the responses
    cdef int filled
    cdef readonly bint has_reader       # a caller waits for the response
    cdef list waiting                   # slots whose messages wait for their turn
    # Until when they wait for the stages' requests in flight (monotonic seconds): see rest().
    cdef double rests_until
    cdef double lingering_ended         # messages from before that no longer linger
    cdef readonly double used_at        # when a caller used it last (monotonic seconds)
    cdef ReportsInbox inbox
    cdef WakeEvent reports              # to be set, as Reports has something to report
    #: A request that was settled and is not reported yet.
    cdef public ProduceRequest unreported

    def __cinit__(self):
        self.requests = []
        self.waiting = []
        self.stream_is_free = WakeEvent()
        self.watch = self.wake_event = self.timer = self.watched = self.fd = self.wakeup = -1

    def __init__(self, int broker_id, ReportsInbox inbox not None):
        self.broker_id = broker_id
        self.inbox = inbox

    def __dealloc__(self):
        self.close()

    cpdef close(self):
        """Close the descriptors. For the child of a fork: no other thread uses them there."""
        for fd in (self.watch, self.wake_event, self.timer):
            if fd >= 0:
                close_descriptor(fd)
        self.watch = self.wake_event = self.timer = self.wakeup = -1

    def end(self):
        """Close the descriptors for the Bridge, which has ended.

        A caller that still waits closes them instead, so that their numbers are not used for other
        files during its wait.
        """
        self.has_ended = True
        if not self.has_reader:
            self.close()

    def attach(self, int fd, int wakeup, TlsStream stream=None):
        """Watch the socket *fd* of a new connection. Return False if the system refuses that.

        *wakeup*: a socket; writing to it wakes the Bridge. *stream*: what encrypts its bytes; None:
        they are not encrypted.
        """
        if not CALLERS_MAY_SEND:
            return False
        if not self.make_descriptors() or begin_watch(self.watch, fd) != 0:
            return False
        self.stream = stream
        self.watched = fd
        self.wakeup = wakeup
        return True

    cdef bint make_descriptors(self):
        if self.watch < 0:
            self.watch = new_watch()
        if self.wake_event < 0:
            self.wake_event = new_wake_event()
        if self.timer < 0 and self.watch >= 0:
            self.timer, self.rings_at = new_timer(), 0
            if self.timer >= 0 and begin_watch(self.watch, self.timer) != 0:
                close_descriptor(self.timer)
                self.timer = -1
        return self.watch >= 0 and self.wake_event >= 0 and self.timer >= 0

    def detach(self):
        """Forget the socket, which is about to be closed."""
        self.fd = -1
        self.rests_until = 0
        if self.timer >= 0:
            self.set_timer(0)           # or it wakes the Bridge on the next connection
        if self.watched >= 0:
            end_watch(self.watch, self.watched)
            self.watched = -1
        self.stream = None
        self.is_unwatched = False

    def use(self, int version, bytes head not None, ConnectionMetrics metrics not None):
        """Have callers write requests of *version* with *head*, and count them in *metrics*."""
        self.version = version
        self.head = head
        self.metrics = metrics

    def lend(self):
        """Let a caller use the socket, until :meth:`take_back`. No request is in flight."""
        self.fd = self.watched
        if self.waiting:
            self.set_alarm(None)

    def withhold(self):
        """Let no caller begin to use the socket. Return whether none is using it."""
        self.fd = -1
        return not self.requests and not self.stream_is_in_use()

    def take_back(self):
        """Let no caller use the socket. Return the requests in flight, to be adopted, oldest first.

        After each, :meth:`forget_request` is to be called, and at last :meth:`take_received`.
        """
        self.fd = -1
        self.hand_over(True)
        return self.requests[:]

    @property
    def is_handed_over(self):
        """Return whether requests, or a part of a response, wait to be adopted."""
        if self.requests:
            return not self.is_in_use()
        return self.filled > 0

    cdef bint is_in_use(self) noexcept:
        """Return whether callers have requests in flight, and the Bridge has not taken over."""
        return (len(self.requests) > 0
                and (<ProduceRequest>self.requests[0]).state == OF_CALLER)

    def forget_request(self):
        """Forget the oldest request that :meth:`take_back` has returned: it was adopted."""
        drop(self.requests, self.requests[0])

    def take_received(self):
        """Return the bytes of responses that were read, and forget them."""
        found = PyBytes_FromStringAndSize(<char *>self.response, self.filled)
        self.filled = 0
        return found

    def poll(self, list watched not None, int timeout_ms):
        """Wait as :func:`poll_events`, and settle and report callers' requests. For the Bridge.

        Returns when anything else happens. No Python code runs while a request is settled.
        """
        cdef int64_t end = kernel_clock(0) + <int64_t>timeout_ms * 1000000
        cdef list events = polled_events(watched, timeout_ms)
        cdef WakeEvent reports = None
        try:
            while self.is_only_watch(watched, events):
                if not self.progress():
                    break
                if self.waiting:
                    self.wake_reports()
                    if self.drive_waiting(True) is not None:
                        break           # the Bridge announces it
                if timeout_ms >= 0:
                    timeout_ms = max(0, (end - kernel_clock(0) + 999999) // 1000000)
                    if timeout_ms == 0:
                        break           # a deadline of the stage comes before the next response
                reports, self.reports = self.reports, None
                events = polled_events(watched, timeout_ms, reports)
                reports = None
        finally:
            if reports is not None:
                set_event(reports)      # again, if there was no memory to wait
            self.wake_reports()
        return events

    cdef void wake_reports(self) noexcept:
        """Wake Reports, if it has something to report."""
        if self.reports is not None:
            set_event(self.reports)
            self.reports = None

    cdef bint is_only_watch(self, list watched, list events) except -1:
        """Return whether nothing but `watch` is ready."""
        cdef Py_ssize_t i
        cdef bint found = False
        for i in range(len(events)):
            if events[i]:
                if watched[i][0] != self.watch:
                    return False
                found = True
        return found

    cdef bint progress(self) except -1:
        """Write, settle and report what is possible. Return False if the Bridge must take over."""
        cdef ProduceRequest oldest
        cdef int found
        if self.fd >= 0 and not self.requests:
            self.set_alarm(None)        # it may be the timer: see linger() and leave_to_bridge()
            if self.read() != 0:
                return False
            if not self.requests:
                return True             # otherwise a caller has begun one in read()
        if not self.is_in_use():
            return False
        while self.is_in_use():
            if self.stream_is_in_use():     # in each round: other threads run in OpenSSL's calls
                return self.wait_for_caller()
            if self.to_write:
                self.write_encrypted(_BRIDGE_WAITS_MS)
            found = self.read()
            if found < 0:
                return False
            if found == 0 and not self.to_write:
                break
            if found > 0 and not self.settle_and_report():
                return False
        if not self.is_in_use():
            return not self.requests and not self.filled
        # Nothing is there: it is the timer, or a part of a response.
        oldest = <ProduceRequest>self.requests[0]
        if kernel_clock(0) / <double>_NS >= oldest.late_at:
            return False
        self.set_alarm(oldest.path)
        return True

    cdef int read(self) except -2:
        """Read what the socket has. Return 1 if a response is complete, 0 if not, -1 if it fails.

        The Bridge finds the same error or end of the stream, and reports it. With TLS, other
        threads may run, and a signal handler may raise.
        """
        cdef Py_ssize_t count
        cdef Py_ssize_t room = sizeof(self.response) - self.filled
        cdef TlsStream stream = self.stream
        if is_whole(self) > 0:
            return 1
        if stream is None:
            count = kernel_read(self.watched, self.response + self.filled, room)
            if count < 0 and is_no_room(errno):
                return 0
        else:
            if stream.failure is not None:
                return -1
            count = stream.read(self.response + self.filled, room)
            if stream is not self.stream:
                return -1               # it was lost, and `response` may belong to the next one
            if count == 0 and stream.failure is None:
                return is_whole(self)
        if count <= 0:
            return -1
        self.filled += <int>count
        return is_whole(self)

    cdef bint stream_is_in_use(self) noexcept:
        """Return whether a thread encrypts or decrypts now."""
        return self.stream is not None and self.stream.in_use

    cdef bint wait_for_caller(self) noexcept:
        """Have the Bridge wait until a caller has used the stream. Returns False if it is late."""
        cdef ProduceRequest oldest = <ProduceRequest>self.requests[0]
        if kernel_clock(0) / <double>_NS >= oldest.late_at:
            return False
        self.is_unwatched = True
        set_watched(self.watch, self.watched, False)
        self.set_alarm(oldest.path)
        return True

    cdef void end_stream_use(self, TlsStream stream) noexcept:
        """End a caller's use of *stream*, with which the Bridge may have to continue."""
        if stream is None or stream is not self.stream or stream.in_use:
            return
        if self.is_unwatched:
            self.is_unwatched = False
            set_watched(self.watch, self.watched, not self.has_reader)
        if self.awaits_stream:
            set_event(self.stream_is_free)

    def wait_for_stream(self):
        """Wait until no caller uses the stream. Return False if that takes too long.

        A caller uses it for some microseconds. But in this time a signal may arrive, and its
        handler runs there and may block; it may even wait for a message of this connection. None
        begins to use it after :meth:`withhold`.
        """
        cdef int64_t end = kernel_clock(0) + <int64_t>_CALLER_WAIT_MS * 1000000
        cdef int64_t left
        while self.stream_is_in_use():
            left = end - kernel_clock(0)
            if left <= 0:
                return False
            self.awaits_stream = True
            try:
                self.stream_is_free.wait(left / <double>_NS)
            finally:
                self.awaits_stream = False
        return True

    cdef bint settle_and_report(self) except -1:
        """Settle the oldest request, whose response is complete, and report its messages."""
        cdef ProduceRequest request = <ProduceRequest>self.requests[0]
        cdef Chunk chunk = part_of(request).chunk
        cdef bint settled = False
        try:
            # A flush must find it, from before it is settled until it is reported.
            if not self.inbox.enter(chunk):
                return False
            settled = self.settle_oldest()
        finally:
            if not settled:
                self.inbox.live.pop(chunk.serial, None)     # the Bridge adopts it: enters it again
        if not settled:
            return False
        if request.reports[0] is None:
            self.inbox.live.pop(chunk.serial, None)     # no other code has run since enter()
        trace_response(request)
        while request.reports[0] is not None:
            if self.inbox.report(request):
                self.reports = self.inbox.wake_event
        self.unreported = None
        return True

    cdef void pass_to_reports(self, ProduceRequest request) noexcept:
        """Pass the settled rows of *request* to Reports. Without memory, the Bridge does that."""
        self.unreported = request
        self.reports = self.inbox.wake_event
        try:
            while request.reports[0] is not None:
                self.inbox.put(request.reports[0])
                request.drop_report()
        except MemoryError:
            kernel_poke(self.wakeup)
            return
        self.unreported = None

    def rest(self, TopicSlot slot not None, CallerPath path not None, double until):
        """Let the messages of *slot* wait until the stages' requests in flight are answered.

        For a topic with a message now and then, each of which would find the one before in flight.
        Then the socket can be lent, and they are sent. *until*: at most (monotonic seconds).
        """
        if self.watched >= 0:
            slot.rests_for = path
            self.rests_until = until

    @property
    def rest_ends(self):
        """Return when messages have waited long enough, if that is all that ends their rest."""
        return self.rests_until if self.rests_until and self.waiting and not self.requests else None

    def end_rest(self):
        """Send or announce the waiting slots, because a path was lent or will not be."""
        if self.rests_until:
            self.rests_until = 0
            if self.waiting and not self.requests:
                # Not a byte in `wakeup`: it would end what the Bridge may begin before it sees it.
                self.set_timer(1)

    cdef bint is_resting(self) noexcept:
        return self.rests_until != 0 and self.rests_until > kernel_clock(0) / <double>_NS

    cdef void set_alarm(self, CallerPath path) noexcept:
        """Have the timer expire when the Bridge is to look after the requests or the slots.

        *path*: of the requests; None: there are none.
        """
        cdef double now = kernel_clock(0) / <double>_NS
        cdef double due = _NEVER
        cdef Py_ssize_t i
        if self.requests:
            due = (<ProduceRequest>self.requests[0]).late_at
        if self.waiting and self.is_resting():
            due = min(due, self.rests_until)
        else:
            for i in range(len(self.waiting)):
                due = min(due, self.due(<TopicSlot>self.waiting[i], path, now))
        # It rings before, and is set then. Nearer ones may be for messages that were sent since.
        if now + _NEAR < self.rings_at <= due < _NEVER:
            return
        self.set_timer(0 if due == _NEVER else max(1, <int64_t>((due - now) * _NS)))

    cdef void set_timer(self, int64_t ns) noexcept:
        """Have the timer expire after *ns*; 0: not at all."""
        self.rings_at = (kernel_clock(0) + ns) / <double>_NS if ns else 0
        set_timer(self.timer, ns)

    cdef double due(self, TopicSlot slot, CallerPath path, double now) noexcept:
        """Return when the messages of *slot*, which waits, are to be sent."""
        cdef double found = lingers_until(slot, self.lingering_ended)
        cdef double opens
        if slot.with_caller:
            return now + _LARGE_TAKES_NS / <double>_NS
        # Without a request in flight no response follows, after which they would be sent.
        if found > now or path is None or not self.requests:
            return found
        opens = opening(path.window, len(self.requests), False)
        return _NEVER if opens == _AFTER_RESPONSE or opens <= now else opens

    def end_lingering(self):
        """Have the messages that linger in their slots sent."""
        if self.waiting:
            self.lingering_ended = kernel_clock(0) / <double>_NS
            self.set_timer(1)

    def settle(self):
        """Settle the oldest request if its response is here and confirms it. For the Bridge.

        Returns whether it is settled. What is to be reported is in the request.
        """
        if not self.settle_oldest():
            return False
        trace_response(self.unreported)
        return True

    cdef bint settle_oldest(self) except -1:
        cdef ProduceRequest request
        if not self.is_in_use() or self.read() <= 0 or not self.is_in_use():
            return False
        request = <ProduceRequest>self.requests[0]
        if not settle_response(request, True):
            return False
        self.unreported = request       # until it is reported, in case there is no memory
        if self.has_reader:
            set_wake_event(self.wake_event)
        return True

    cdef int write_encrypted(self, int patience_ms) except -1:
        """Encrypt and write what callers have begun, unless another thread uses the stream.

        That thread looks again after its call. Other threads may run, and begin more, or a signal
        handler may raise. A request that cannot be written is handed over.
        """
        cdef TlsStream stream = self.stream
        cdef ProduceRequest request
        cdef Py_ssize_t i
        while self.to_write and stream is self.stream and not stream.in_use:
            self.to_write = False
            if stream.failure is not None:
                self.hand_over(False)
            i = 0
            while stream is self.stream and i < len(self.requests) and self.is_in_use():
                request = <ProduceRequest>self.requests[i]
                i += 1
                if not request.written:
                    self.encrypt(stream, request, patience_ms)
        return 0

    cdef int encrypt(self, TlsStream stream, ProduceRequest request, int patience_ms) except -1:
        cdef Py_ssize_t total = 0
        cdef bint whole = False
        for each in request.buffers:
            total += len(each)
        try:
            request.written = stream.send(request.buffers, patience_ms)
            whole = request.written == total
        finally:
            if not whole:
                # If it was interrupted, the broker may have received what it has not returned.
                request.written, stream.taken = request.written + stream.taken, 0
                self.hand_over(False)
        return 0

    def announce_waiting(self, announce not None, *, bint all=False):
        """Send the messages of the waiting slots, or call *announce* with each that cannot be sent.

        A slot is forgotten before that. Otherwise no stage might learn of a message:

        1. *announce* puts the slot into the dispatcher's queue, and its chunks are taken;
        2. ``send()`` finds the slot still waiting for its turn here, and does not announce it;
        3. the slot is forgotten here.

        *all*: announce each of them, because no response comes any more.
        """
        cdef TopicSlot slot
        while self.waiting:
            slot = <TopicSlot>self.waiting[0] if all else self.drive_waiting(True)
            if slot is None:
                break
            self.forget_waiting(slot)
            while True:
                try:
                    announce(slot)
                    break
                except (MemoryError, SystemError):      # the latter: see _util/memory.py
                    pause_for_memory()

    cdef TopicSlot drive_waiting(self, bint in_bridge):
        """Send the messages of the waiting slots, in order, except those that have to wait longer.

        Returns a slot whose messages cannot be sent here: it is to be forgotten and announced.
        Returns None if there is none. *in_bridge*: large messages are sent, too.
        """
        cdef TopicSlot slot
        cdef Py_ssize_t i = 0
        cdef int64_t now
        while i < len(self.waiting) and not self.is_resting():
            slot = <TopicSlot>self.waiting[i]
            if slot.chunk is not None or slot.full:
                if self.fd < 0 or not (in_bridge or slot.chunk is None
                                       or not is_large(slot.chunk)):
                    return slot
                now = kernel_clock(0)
                if slot.with_caller:
                    # A signal handler may block in its codec; then it is encoded twice.
                    if now - slot.with_caller > <int64_t>_CALLER_WAIT_MS * 1000000:
                        return slot
                    i += 1
                    continue
                if lingers_until(slot, self.lingering_ended) > now / <double>_NS:
                    i += 1              # the timer is set for it
                    continue
                if self.is_next_of(slot) and waits_for_response(slot):
                    if slot.rests_for is not None and slot.rests_for.link is not self:
                        self.forget_waiting(slot)   # it waits for another connection
                        continue
                    if not window_is_open(slot.last_path, now / <double>_NS):
                        return None     # nor may the others be sent
                    i += 1
                    continue
                if not drive(slot) and (slot.chunk is not None or slot.full):
                    return slot
                if slot.chunk is not None and self.is_next_of(slot):
                    i += 1              # another partition of this connection has to wait
                    continue
            self.forget_waiting(slot)
        return None

    cdef bint is_next_of(self, TopicSlot slot) noexcept:
        """Return whether *slot* waits for this connection, not for that of another partition."""
        return slot.last_path is not None and slot.last_path.link is self

    cdef void forget_waiting(self, TopicSlot slot) noexcept:
        """Forget a slot that is announced, or whose messages were sent."""
        drop(self.waiting, slot)        # unless a finalizer has changed it

    def stop_timer(self):
        """Stop the timer, which may have expired."""
        cdef int64_t rest = 0
        if self.waiting and self.is_resting():
            rest = max(1, <int64_t>(self.rests_until * _NS) - kernel_clock(0))
        if self.timer >= 0:
            self.set_timer(rest)

    cdef void hand_over(self, bint wake) noexcept:
        """Give the requests to the stages. The Bridge adopts them when it runs next.

        *wake*: the caller, which waits. It clears the event itself.
        """
        cdef ProduceRequest request
        cdef CallerPath path
        if not self.is_in_use():
            return
        for request in self.requests:
            request.state = OF_STAGES
            for path in request.paths:
                path.offered = False
            request.slot.driven -= 1
            request.slot = None
        self.fd = -1
        self.to_write = False
        if self.watched >= 0:
            set_watched(self.watch, self.watched, True)
        if wake and self.has_reader:
            set_wake_event(self.wake_event)
        kernel_poke(self.wakeup)


cdef double lingers_until(TopicSlot slot, double ended) noexcept:
    """Return when the messages of *slot* have lingered; 0 if none does.

    *ended*: messages in chunks opened before that no longer linger.
    """
    cdef Chunk chunk = slot.chunk
    if chunk is None or slot.full or slot.route is None or chunk.opened <= ended:
        return 0
    return min(chunk.opened + slot.route.linger,
               (chunk.earliest - _CALLER_LEAST_NS) / <double>_NS)
