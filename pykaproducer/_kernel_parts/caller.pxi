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
#    which nothing is pending or in flight (`CallerPath`), and a Bridge its connection while it
#    waits (`CallerLink`).
# 2. A caller that finds all three, and no other message of the topic without an outcome, sends. It
#    uses the functions and the objects that the stages use.
# 3. If the response confirms the batch, the caller or the Bridge settles it. The other stages do
#    not know of the message.
# 4. Otherwise the request is handed over: its state becomes OF_STAGES, and the Bridge continues
#    with it as if it had written it (`Bridge._adopt`). A caller then waits as usual. Either side
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
cdef Py_ssize_t _CALLER_BYTES = CALLER_BYTES
#: A request that has no response after this time is handed over (ms).
cdef int _CALLER_WAIT = 1000
#: Stands for "no timeout" of a caller (seconds).
cdef double _NO_TIMEOUT = 3600
#: A message with less time left is left to the stages (ns).
cdef int64_t _CALLER_LEAST = 200000000
#: Messages wait for the response to a request in flight if it is likely to come this soon (ns).
cdef int64_t _SOON = 5000000
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
    cdef readonly ProduceRequest request    # written, and not settled yet
    cdef readonly bint has_reader       # a caller waits for the response
    cdef double round_trip              # of the last request (seconds)
    cdef list waiting                   # slots whose messages wait for the response
    cdef readonly double used_at        # when a caller used it last (monotonic seconds)
    cdef ReportsInbox inbox
    cdef WakeEvent reports              # to be set, as Reports has something to report
    #: A request that was settled and is not reported yet.
    cdef readonly ProduceRequest unreported

    def __cinit__(self):
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
        return self.request is None

    def take_back(self):
        """Let no caller use the socket. Return the request in flight, to be adopted, or None."""
        self.fd = -1
        if self.request is not None:
            self.hand_over(self.request, True)
        return self.request

    @property
    def is_handed_over(self):
        """Return whether a request waits to be adopted."""
        return self.request is not None and self.request.state == OF_STAGES

    def forget_request(self):
        """Forget the request that :meth:`take_back` has returned: it was adopted."""
        self.request = None

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
            if not (self.write_begun() if self.to_write else self.settle_and_report()):
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

    cdef bint settle_and_report(self) except -1:
        """Do what the Bridge does in ``take_back()``, if the request is settled and reported."""
        cdef ProduceRequest request = self.request
        cdef Chunk chunk
        cdef bint settled = False
        if request is None or request.state != OF_CALLER or self.inbox is None:
            return False
        chunk = part_of(request).chunk
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
        if request.reports[0] is not None:
            self.reports = self.inbox.report(<Slice>request.reports[0])
        self.unreported = None
        return True

    def reported(self):
        """Forget the request that was settled and not reported."""
        self.unreported = None

    cpdef bint settle(self) except -1:
        """Settle the request in flight if its response is here and confirms it. For the Bridge.

        Returns whether it is settled. What is to be reported is in the request.
        """
        cdef ProduceRequest request = self.request
        if request is None or request.state != OF_CALLER or self.to_write:
            return False
        if self.encrypts is not None:
            if self.decrypt_response(request) <= 0:
                return False
        elif read_response(request) <= 0:
            return False
        if not settle_response(request, True):
            return False
        self.unreported = request       # until it is reported, in case there is no memory
        if self.has_reader:
            set_wake_event(self.wake_event)
        return True

    cdef int decrypt_response(self, ProduceRequest request) except -2:
        """As read_response(), with TLS. May let other threads run."""
        cdef Py_ssize_t room = sizeof(request.response) - request.filled
        # PyBUF_WRITE
        into = PyMemoryView_FromMemory(<char *>request.response + request.filled, room, 0x200)
        cdef int count = self.encrypts.read_begun(into)
        if count <= 0:
            return count
        request.filled += count
        return is_whole(request) if request.state == OF_CALLER else -1

    cdef bint write_begun(self) except -1:
        """Encrypt and write the request that a caller has begun. Return whether it is written.

        For the Bridge. May let other threads run, which may hand the request over.
        """
        cdef ProduceRequest request = self.request
        cdef Py_ssize_t total = 0
        self.to_write = False
        if request is None or request.state != OF_CALLER or self.encrypts is None:
            return False
        for each in request.buffers:
            total += len(each)
        request.written = self.encrypts.write_begun(request)
        if request.written != total:
            self.hand_over(request, False)
        return request.state == OF_CALLER

    cpdef TopicSlot drive_waiting(self, bint possible):
        """Send the messages of the first slot that waits. The others wait for their response.

        *possible*: the socket is lent. Returns a slot whose messages could not be sent: it is to be
        announced, and then to be forgotten. None if there is no other.
        """
        cdef TopicSlot slot
        while self.waiting and self.request is None:
            slot = <TopicSlot>self.waiting[0]
            if slot.chunk is not None or slot.full:
                if not possible or not drive(slot):
                    return slot
            self.forget_waiting(slot)
        return None

    cpdef forget_waiting(self, TopicSlot slot):
        """Forget a slot that was announced, or whose messages were sent."""
        if slot in self.waiting:        # a finalizer may have changed it
            self.waiting.remove(slot)

    def stop_timer(self):
        """Stop the timer, which may have expired."""
        if self.timer >= 0:
            set_timer(self.timer, 0)

    cdef void hand_over(self, ProduceRequest request, bint wake) noexcept:
        """Give *request* to the stages. The Bridge adopts it when it runs next.

        *wake*: the caller, which waits. It clears the event itself: see wait_as_caller().
        """
        if request.state != OF_CALLER:
            return
        request.state = OF_STAGES
        request.path.offered = False
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
    cdef ProduceRequest request         # written by a caller, and not settled here

    def __init__(self, CallerLink link not None, BufferState buffer not None,
                 RequestSealer sealer not None, RequestSettler settler not None, *,
                 double timeout, double patience):
        self.link = link
        self.buffer = buffer
        self.sealer = sealer
        self.settler = settler
        self.timeout = timeout
        self.patience = patience

    def lend(self, view, TopicMetrics topic_metrics not None):
        """Let callers use the partition. *view*: of its topic."""
        self.view = view
        self.topic_metrics = topic_metrics
        self.n_sent = 0
        self.offered = True

    def withdraw(self):
        """Let no caller use the partition. Return the request in flight, or None.

        The request is handed over: the Bridge adopts it before it writes another one.
        """
        cdef ProduceRequest request = self.request
        self.offered = False
        self.request = None
        if request is not None:
            self.link.hand_over(request, True)
        return request
