# A caller of send(), result() or flush() sends messages itself if the stages have nothing to do.
#
# A message that passes the stages wakes three threads, and each hand-over costs 15 to 20 us. So the
# caller takes the open chunk, encodes the batch and writes the request here. If it waits for the
# outcome, it also reads the response and settles it, and no other thread is woken. Otherwise the
# Bridge does that, with the same functions.
#
# No Python code runs between the moment at which the chunk is taken and the one at which its
# request is in `CallerLink`, nor while the response is settled. So a KeyboardInterrupt or a signal
# handler never finds a message in between, and with the GIL no other thread does either. While it
# is in flight, the message is in a `ProduceRequest`, which has one owner:
#
# 1. The stages lend: a TopicWorker its partitioner (`CallerRoute`), a BrokerWorker a partition of
#    which it has nothing pending or in flight (`CallerPath`), and a Bridge its connection while it
#    waits (`CallerLink`).
# 2. A caller that finds all three, and no other message of the topic in the stages, sends. It uses
#    the functions and the objects that the stages use.
# 3. If the response confirms the batches, the caller or the Bridge settles them. The other stages
#    do not know of the messages.
# 4. Otherwise all requests of the connection are handed over: their state becomes OF_STAGES, and
#    the Bridge continues with them as if it had written them (`Bridge._adopt`). A caller then waits
#    as usual. Either side
#    may begin: the caller, if the response is an error, malformed, or late, or if a signal arrives;
#    a stage, if it needs the partition or the connection, or has to know all messages (a flush).
#
# All of this relies on the GIL: in a build without it nothing is ever lent.

cdef extern from *:
    """
    #include <unistd.h>
    #ifdef __linux__
    #include <sys/epoll.h>
    #include <sys/eventfd.h>
    #include <sys/timerfd.h>
    static int new_watch(void) { return epoll_create1(EPOLL_CLOEXEC); }
    static int new_wake_event(void) { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); }
    static int new_timer(void) {
        return timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    }
    /* 0: stop it. A timer that has expired is no longer readable once it is set anew. */
    static void set_timer(int timer, int64_t ns) {
        struct itimerspec when;
        memset(&when, 0, sizeof when);
        when.it_value.tv_sec = ns / 1000000000;
        when.it_value.tv_nsec = ns % 1000000000;
        timerfd_settime(timer, 0, &when, NULL);
    }
    static int watch_control(int watch, int how, int fd, int wanted) {
        struct epoll_event event;
        memset(&event, 0, sizeof event);
        event.events = wanted ? EPOLLIN | EPOLLRDHUP : 0;
        return epoll_ctl(watch, how, fd, &event);
    }
    static int begin_watch(int watch, int fd) {
        return watch_control(watch, EPOLL_CTL_ADD, fd, 1);
    }
    /* Needs no memory, unlike removing and adding it. */
    static void set_watched(int watch, int fd, int wanted) {
        watch_control(watch, EPOLL_CTL_MOD, fd, wanted);
    }
    static void end_watch(int watch, int fd) { watch_control(watch, EPOLL_CTL_DEL, fd, 0); }
    static void set_wake_event(int wake_event) {
        uint64_t one = 1;
        while (write(wake_event, &one, sizeof one) < 0 && errno == EINTR);
    }
    static void clear_wake_event(int wake_event) {
        uint64_t count;
        while (read(wake_event, &count, sizeof count) < 0 && errno == EINTR);
    }
    #else
    static int new_watch(void) { return -1; }
    static int new_wake_event(void) { return -1; }
    static int new_timer(void) { return -1; }
    static void set_timer(int timer, int64_t ns) {}
    static int begin_watch(int watch, int fd) { return -1; }
    static void set_watched(int watch, int fd, int wanted) {}
    static void end_watch(int watch, int fd) {}
    static void set_wake_event(int wake_event) {}
    static void clear_wake_event(int wake_event) {}
    #endif
    #ifdef Py_GIL_DISABLED
    #define CALLERS_MAY_SEND 0
    #else
    #define CALLERS_MAY_SEND 1
    #endif
    /* Whether this thread belongs to a stage, which must not wait for a message. */
    static __thread int runs_stages = 0;
    static void set_runs_stages(int value) { runs_stages = value; }

    /* As kernel_poll(), but returns -1 if a signal has interrupted it. */
    static int poll_once(struct pollfd *fds, int count, int timeout) {
        return poll(fds, count, timeout);
    }
    """
    int CALLERS_MAY_SEND
    int new_watch()
    int new_wake_event()
    int new_timer()
    void set_timer(int timer, int64_t ns)
    int begin_watch(int watch, int fd)
    void set_watched(int watch, int fd, int wanted)
    void end_watch(int watch, int fd)
    void set_wake_event(int wake_event)
    void clear_wake_event(int wake_event)
    int runs_stages
    void set_runs_stages(int value)
    int poll_once(pollfd *fds, int count, int timeout) nogil
    int close_descriptor "close"(int fd)

cdef uint32_t _CALLER_ROWS = CALLER_ROWS
#: Maximum number of batches in a request, and of buffers in its frame.
cdef enum:
    _CALLER_BATCHES = 16
    _CALLER_BUFFERS = 2 * _CALLER_BATCHES + 2
cdef Py_ssize_t _CALLER_BYTES = CALLER_BYTES
#: A request that has no response after this time is handed over (ms).
cdef int _CALLER_WAIT = 1000
#: Stands for "no timeout" of a caller (seconds).
cdef double _NO_TIMEOUT = 3600
#: A message with less time left is left to the stages (ns).
cdef int64_t _CALLER_LEAST = 200000000
#: The dispatcher learns at least this often that a topic is in use (ns).
cdef int64_t _ANNOUNCE_EVERY = 500000000


def this_thread_runs_stages(bint runs):
    """Record whether the calling thread belongs to a stage. Its callbacks must not wait."""
    set_runs_stages(runs)


@cython.final
cdef class ReportsInbox:
    """The inbox of the stage Reports, for a Bridge that settles a caller's request.

    *put*: appends a slice to it. *wake_event*: wakes the stage. *incomplete*: the chunks for which
    a flush waits. Compiled, because Python code between the response and the callback would cost
    more than the rest.
    """

    cdef object put, incomplete
    cdef dict live
    cdef WakeEvent wake_event
    #: Whether the stage has a thread, and calls callbacks.
    cdef public bint is_open

    def __init__(self, put, WakeEvent wake_event not None, incomplete):
        self.put = put
        self.wake_event = wake_event
        self.incomplete = incomplete
        self.live = incomplete.live

    cdef bint enter(self, Chunk chunk) except -1:
        """Add *chunk* to those for which a flush waits, before it is settled.

        Returns False if it is to be reported by the functions in Python.
        """
        if not self.is_open or self.incomplete.watches_outcomes:
            return False
        self.live[chunk.serial] = chunk
        return True

    cdef WakeEvent report(self, Slice part):
        """Report settled rows, which are all rows of a chunk that was entered.

        Returns an event, if it is to be set.
        """
        if has_waiters(part.chunk):
            wake_waiters(part)
        if not has_callbacks(part.chunk) and not has_failures(part.chunk):
            if part.finish():
                self.incomplete.leave(part.chunk)
            return None
        self.put(part)
        want_gil()
        return self.wake_event


@cython.final
cdef class CallerLink:
    """The connection of a Bridge, as callers use it. Linux only: otherwise it is never usable.

    The Bridge waits for ``watch`` instead of its socket. It becomes readable with the socket,
    except while a caller waits for the response, and when the timer expires.

    A connection with TLS is used by the Bridge alone, because OpenSSL allows one thread at a time,
    and `ssl` runs signal handlers. The caller only begins the request, and the Bridge encrypts it,
    reads the response and wakes the caller. For that, `watch` also has the event.
    """

    cdef readonly int watch             # an epoll descriptor; -1: not available
    # Wakes the caller that waits for the response; with TLS, the Bridge that is to write.
    cdef int wake_event
    cdef int timer                      # wakes the Bridge if the response is late
    cdef int watched                    # the socket in `watch`; -1: none
    cdef object encrypts                # the connection, if it has TLS; else None
    cdef bint to_write                  # the request waits for the Bridge
    cdef bint event_in_watch
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
    cdef readonly double used_at        # when a caller used it last (monotonic seconds)
    cdef ReportsInbox inbox
    cdef WakeEvent reports              # to be set, as Reports has something to report
    #: A request that was settled and is not reported yet.
    cdef readonly ProduceRequest unreported

    def __cinit__(self):
        self.requests = []
        self.waiting = []
        self.watch = self.wake_event = self.timer = self.watched = self.fd = self.wakeup = -1

    def __dealloc__(self):
        if self.watch >= 0:
            close_descriptor(self.watch)
        if self.wake_event >= 0:
            close_descriptor(self.wake_event)
        if self.timer >= 0:
            close_descriptor(self.timer)

    def attach(self, int fd, int wakeup, encrypts=None):
        """Watch the socket *fd* of a new connection. Return False if the system refuses that.

        *wakeup*: a socket; writing to it wakes the Bridge. *encrypts*: the connection, if its bytes
        are encrypted: its ``write_begun(request)`` and ``read_begun(into)`` are called.
        """
        if not CALLERS_MAY_SEND:
            return False
        if not self.make_descriptors() or begin_watch(self.watch, fd) != 0:
            return False
        if encrypts is not None and not self.event_in_watch:
            if begin_watch(self.watch, self.wake_event) != 0:
                end_watch(self.watch, fd)
                return False
            self.event_in_watch = True
        self.encrypts = encrypts
        self.watched = fd
        self.wakeup = wakeup
        return True

    cdef bint make_descriptors(self):
        if self.watch < 0:
            self.watch = new_watch()
        if self.wake_event < 0:
            self.wake_event = new_wake_event()
        if self.timer < 0 and self.watch >= 0:
            self.timer = new_timer()
            if self.timer >= 0 and begin_watch(self.watch, self.timer) != 0:
                close_descriptor(self.timer)
                self.timer = -1
        return self.watch >= 0 and self.wake_event >= 0 and self.timer >= 0

    def detach(self):
        """Forget the socket, which is about to be closed."""
        self.fd = -1
        if self.watched >= 0:
            end_watch(self.watch, self.watched)
            self.watched = -1
        self.encrypts = None

    def use(self, int version, bytes head not None, ConnectionMetrics metrics not None,
            ReportsInbox inbox not None):
        """Have callers write requests of *version* with *head*, and count them in *metrics*.

        *inbox*: for what is settled while the Bridge waits in :meth:`poll`.
        """
        self.inbox = inbox
        self.version = version
        self.head = head
        self.metrics = metrics

    def lend(self):
        """Let a caller use the socket, until :meth:`take_back`. No request is in flight."""
        self.fd = self.watched

    def withhold(self):
        """Let no caller begin to use the socket. Return whether none is using it."""
        self.fd = -1
        return not self.requests

    def take_back(self):
        """Let no caller use the socket. Return the requests in flight, to be adopted, oldest first.

        After each of them, :meth:`forget_request` is to be called, and at last :meth:`received`.
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
        del self.requests[0]

    def received(self):
        """Return the bytes of responses that were read, and forget them."""
        found = PyBytes_FromStringAndSize(<char *>self.response, self.filled)
        self.filled = 0
        return found

    def poll(self, list watched not None, int timeout_ms):
        """Wait as :func:`poll_events`, and settle and report callers' requests. For the Bridge.

        Returns when anything else happens. Meanwhile no Python code runs, but that of codecs.
        """
        cdef int64_t end = kernel_clock(0) + <int64_t>timeout_ms * 1000000
        cdef list events = polled_events(watched, timeout_ms)
        cdef WakeEvent reports
        while self.is_all(watched, events):
            if self.event_in_watch:
                clear_wake_event(self.wake_event)
            if not self.progress():
                break
            reports, self.reports = self.reports, None
            if self.waiting:
                if reports is not None:
                    set_event(reports)
                    reports = None
                if self.drive_waiting(self.fd >= 0) is not None:
                    break               # the Bridge announces it
            if timeout_ms >= 0:
                timeout_ms = max(0, (end - kernel_clock(0) + 999999) // 1000000)
            events = polled_events(watched, timeout_ms, reports)
        return events

    cdef bint is_all(self, list watched, list events) except -1:
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
        if not self.is_in_use() or self.inbox is None:
            return False
        if self.to_write and not self.write_begun():
            return False
        while self.is_in_use():
            found = self.read()
            if found < 0:
                return False
            if found == 0:
                break
            if not self.settle_and_report():
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
        """As read_response(). With TLS, it may let other threads run."""
        cdef int count
        if self.encrypts is None:
            return read_response(self)
        if is_whole(self) > 0:
            return 1
        # PyBUF_WRITE
        into = PyMemoryView_FromMemory(<char *>self.response + self.filled,
                                       sizeof(self.response) - self.filled, 0x200)
        count = self.encrypts.read_begun(into)
        if count <= 0:
            return count
        self.filled += count
        return is_whole(self)

    cdef bint settle_and_report(self) except -1:
        """Settle the oldest request, whose response is complete, and report its messages."""
        cdef ProduceRequest request = <ProduceRequest>self.requests[0]
        cdef Chunk chunk = part_of(request).chunk
        cdef bint settled = False
        try:
            # A flush must find it, from before it is settled until it is reported.
            if not self.inbox.enter(chunk):
                return False
            settled = self.settle()
        finally:
            if not settled or request.reports[0] is None:
                self.inbox.live.pop(chunk.serial, None)
        if not settled:
            return False
        for part in request.reports:
            if part is None:
                break
            reports = self.inbox.report(<Slice>part)
            if reports is not None:
                self.reports = reports
        self.unreported = None
        return True

    def rest(self, TopicSlot slot not None, CallerPath path not None, double until):
        """Let the messages of *slot* wait until the stages' requests in flight are answered.

        For a topic with a message now and then, each of which would find the one before in flight.
        Then the socket can be lent, and they are sent. *until*: at most (monotonic seconds).
        """
        slot.rests_for = path
        self.rests_until = until

    def end_rest(self):
        """Have the slots that wait sent, or announced: a path was lent, or is not going to be."""
        if self.rests_until:
            self.rests_until = 0
            if self.waiting and not self.requests:
                # Not a byte in `wakeup`: it would end what the Bridge may begin before it sees it.
                set_timer(self.timer, 1)

    cdef bint is_resting(self) noexcept:
        return self.rests_until != 0 and self.rests_until > kernel_clock(0) / <double>_NS

    cdef void set_alarm(self, CallerPath path) noexcept:
        """Have the timer expire when the Bridge is to look after the requests or the slots."""
        cdef double now = kernel_clock(0) / <double>_NS
        cdef double due = now + _CALLER_WAIT / 1000.0
        cdef double opens
        if self.requests:
            due = (<ProduceRequest>self.requests[0]).late_at
        elif self.is_resting():
            due = self.rests_until
        if self.waiting:
            opens = opening(path.window, len(self.requests), False)
            if opens != _AFTER_RESPONSE and opens > now:
                due = min(due, opens)
        set_timer(self.timer, max(1, <int64_t>((due - now) * _NS)))

    def reported(self):
        """Forget the request that was settled and not reported."""
        self.unreported = None

    cpdef bint settle(self) except -1:
        """Settle the oldest request if its response is here and confirms it. For the Bridge.

        Returns whether it is settled. What is to be reported is in the request.
        """
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

    cdef bint write_begun(self) except -1:
        """Encrypt and write what callers have begun. Return False if the requests are handed over.

        For the Bridge. May let other threads run, which may begin more, or hand them over.
        """
        cdef ProduceRequest request
        cdef Py_ssize_t i = 0, total
        self.to_write = False
        while i < len(self.requests) and self.is_in_use():
            request = <ProduceRequest>self.requests[i]
            i += 1
            if request.written:
                continue
            total = 0
            for each in request.buffers:
                total += len(each)
            request.written = self.encrypts.write_begun(request)
            if request.written != total:
                self.hand_over(False)
        return self.is_in_use()

    cpdef TopicSlot drive_waiting(self, bint possible):
        """Send the messages of the first slot that waits. The others wait for their response.

        *possible*: the socket is lent. Returns a slot whose messages could not be sent: it is to be
        announced, and then to be forgotten. None if there is no other.
        """
        cdef TopicSlot slot
        while self.waiting and not self.is_resting():
            slot = <TopicSlot>self.waiting[0]
            if slot.chunk is not None or slot.full:
                if not possible:
                    return slot
                if self.is_next_of(slot) and waits_for_response(slot):
                    return None
                if not drive(slot):
                    return slot
                if slot.chunk is not None and self.is_next_of(slot):
                    return None         # another partition of this connection has to wait
            self.forget_waiting(slot)
        return None

    cdef bint is_next_of(self, TopicSlot slot) noexcept:
        """Return whether *slot* waits for this connection, not for that of another partition."""
        return slot.last_path is not None and slot.last_path.link is self

    cpdef forget_waiting(self, TopicSlot slot):
        """Forget a slot that was announced, or whose messages were sent."""
        if slot in self.waiting:        # a finalizer may have changed it
            self.waiting.remove(slot)

    def stop_timer(self):
        """Stop the timer, which may have expired."""
        if self.timer >= 0 and not (self.waiting and self.is_resting()):
            set_timer(self.timer, 0)

    cdef void hand_over(self, bint wake) noexcept:
        """Give the requests to the stages. The Bridge adopts them when it runs next.

        *wake*: the caller, which waits. It clears the event itself: see wait_as_caller().
        """
        cdef ProduceRequest request
        cdef CallerPath path
        cdef TopicSlot slot
        if not self.is_in_use():
            return
        for request in self.requests:
            request.state = OF_STAGES
            for path in request.paths:
                path.offered = False
            slot = part_of(request).chunk.origin
            if slot is not None:
                slot.driven -= 1
        self.fd = -1
        self.to_write = False
        if self.watched >= 0:
            set_watched(self.watch, self.watched, True)
        if wake and self.has_reader:
            set_wake_event(self.wake_event)
        kernel_poke(self.wakeup)


@cython.final
cdef class CallerRoute:
    """A topic's partitioner, with what it needs, as callers use it.

    It is valid while *metadata* has this *view* of the topic. *metrics*: its ``trace`` must be
    None, because callers record no events. *drives*: ``send()`` itself sends, too, not only a
    caller that waits.
    """

    cdef bint drives
    cdef Partitioner partitioner
    cdef object metadata, view
    cdef RequestMetrics metrics
    cdef str topic
    cdef int32_t partitions
    cdef bytes available

    def __init__(self, Partitioner partitioner not None, metadata, view,
                 RequestMetrics metrics not None, *, bint drives):
        self.drives = drives
        self.partitioner = partitioner
        self.metadata = metadata
        self.view = view
        self.metrics = metrics
        self.topic = view.name
        self.partitions = view.partitions
        self.available = view.available

    cdef bint is_valid(self) except -1:
        # Attributes and a dict: no Python code runs.
        return (self.metadata.view.topics.get(self.topic) is self.view
                and self.metrics.trace is None and self.partitioner.bounds is None)


@cython.final
cdef class CallerPath:
    """A partition without a message in progress, as callers use it.

    *buffer*: its partition buffer. *sealer*, *settler*: those of its broker. *timeout*, *patience*:
    as for :func:`request_deadline`.
    """

    cdef CallerLink link
    cdef BufferState buffer
    cdef RequestSealer sealer
    cdef RequestSettler settler
    cdef double timeout, patience
    cdef object view                    # of the topic, when it was lent
    cdef TopicMetrics topic_metrics
    cdef bint offered                   # callers may use it
    cdef readonly int64_t n_sent        # requests since it was lent
    cdef list requests                  # written by callers, and not settled here
    cdef WindowState window

    def __init__(self, CallerLink link not None, BufferState buffer not None,
                 RequestSealer sealer not None, RequestSettler settler not None,
                 WindowState window not None, *, double timeout, double patience):
        self.link = link
        self.buffer = buffer
        self.sealer = sealer
        self.settler = settler
        self.window = window
        self.requests = []
        self.timeout = timeout
        self.patience = patience

    def lend(self, view, TopicMetrics topic_metrics not None):
        """Let callers use the partition. *view*: of its topic."""
        self.view = view
        self.topic_metrics = topic_metrics
        self.n_sent = 0
        self.offered = True

    def withdraw(self):
        """Let no caller use the partition. Return its requests in flight.

        They are handed over: the Bridge adopts them before it writes another one.
        """
        cdef list found = self.requests
        cdef ProduceRequest request
        cdef CallerPath path
        self.offered = False
        if found:
            self.requests = []
            self.link.hand_over(True)
        for request in found:           # another partition's worker must not return it again
            for path in request.paths:
                if path is not self:
                    path.requests.remove(request)
        return found
