# A caller that waits for its message sends it itself, and settles the response.
#
# A message that is waited for passes three threads, and each hand-over costs 15 to 20 us. If the
# stages have nothing to do, the caller runs them here: it takes the open chunk, encodes the batch,
# writes the request, waits for the socket, and settles the response. No other thread is woken.
#
# No Python code runs between the moment at which the chunk is taken and the wait, nor between the
# wait and the moment at which the response is settled. So a KeyboardInterrupt or a signal handler
# never finds a message in between, and with the GIL no other thread does either. While the caller
# waits, the message is in a `ProduceRequest`, which has one owner:
#
# 1. The stages lend: a TopicWorker its partitioner (`CallerRoute`), a BrokerWorker a partition of
#    which nothing is pending or in flight (`CallerPath`), and a Bridge its connection while it
#    waits (`CallerLink`).
# 2. A caller that finds all three, and no other message of the topic in progress, sends. It uses
#    the functions and the objects that the stages use.
# 3. If the response confirms the batch, the caller settles it. No stage knows of the message.
# 4. Otherwise the request is handed over: its state becomes OF_STAGES, and the Bridge continues
#    with it as if it had written it (`Bridge.adopt`). The caller then waits as usual. Either side
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
        when.it_value.tv_nsec = ns;
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
#: Maximum time that a caller waits for the response before it hands the request over (ms).
cdef int _CALLER_WAIT = 1000
#: Stands for "no timeout" of a caller (seconds).
cdef double _NO_TIMEOUT = 3600
#: A message with less time left is left to the stages (ns).
cdef int64_t _CALLER_LEAST = 200000000
#: Maximum time for which a message waits for a caller that sends it, before it is announced (ns).
cdef int64_t _QUIET = 200000
#: The dispatcher learns at least this often that a topic is in use (ns).
cdef int64_t _ANNOUNCE_EVERY = 500000000


def this_thread_runs_stages(bint runs):
    """Record whether the calling thread belongs to a stage. Its callbacks must not wait."""
    set_runs_stages(runs)


@cython.final
cdef class CallerLink:
    """The connection of a Bridge, as callers use it. Linux only: otherwise it is never usable.

    The Bridge waits for ``watch`` instead of its socket. It becomes readable with the socket,
    except while a caller waits for the response.
    """

    cdef readonly int watch             # an epoll descriptor; -1: not available
    cdef int wake_event                 # wakes the caller
    cdef int timer                      # expires when `quiet` must be announced
    cdef int watched                    # the socket in `watch`; -1: none
    cdef int fd                         # the socket while it is lent; -1: it is not
    cdef int wakeup                     # a socket; a byte in it wakes the Bridge
    cdef int32_t correlation_id
    cdef int version                    # of requests
    cdef bytes head                     # of requests, for produce_frame()
    cdef ConnectionMetrics metrics
    cdef ProduceRequest request         # written, and not settled yet
    cdef TopicSlot quiet                # it is not announced yet: see keep_quiet()
    cdef readonly double used_at        # when a caller used it last (monotonic seconds)

    def __cinit__(self):
        self.watch = self.wake_event = self.timer = self.watched = self.fd = self.wakeup = -1

    def __dealloc__(self):
        if self.watch >= 0:
            close_descriptor(self.watch)
        if self.wake_event >= 0:
            close_descriptor(self.wake_event)
        if self.timer >= 0:
            close_descriptor(self.timer)

    def attach(self, int fd, int wakeup):
        """Watch the socket *fd* of a new connection. Return False if the system refuses that.

        *wakeup*: a socket; writing to it wakes the Bridge.
        """
        if not CALLERS_MAY_SEND:
            return False
        if not self.make_descriptors() or begin_watch(self.watch, fd) != 0:
            return False
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

    def use(self, int version, bytes head not None, ConnectionMetrics metrics not None):
        """Have callers write requests of *version* with *head*, and count them in *metrics*."""
        self.version = version
        self.head = head
        self.metrics = metrics

    def lend(self):
        """Let a caller use the socket, until :meth:`take_back`. No request is in flight."""
        if self.request is None:
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

    def forget_request(self):
        """Forget the request that :meth:`take_back` has returned: it was adopted."""
        self.request = None

    @property
    def quiet_slot(self):
        """Return the slot that is to be announced now, or None."""
        return self.quiet

    def forget_quiet_slot(self):
        """Forget the quiet slot, which has been announced."""
        self.quiet = None
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
        if self.watched >= 0:
            set_watched(self.watch, self.watched, True)
        if wake:
            set_wake_event(self.wake_event)
        kernel_poke(self.wakeup)


@cython.final
cdef class CallerRoute:
    """A topic's partitioner, with what it needs, as callers use it.

    It is valid while *metadata* has this *view* of the topic. *metrics*: its ``trace`` must be
    None, because callers record no events.
    """

    cdef Partitioner partitioner
    cdef object metadata, view
    cdef RequestMetrics metrics
    cdef str topic
    cdef int32_t partitions
    cdef bytes available

    def __init__(self, Partitioner partitioner not None, metadata, view,
                 RequestMetrics metrics not None):
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

    cdef readonly CallerLink link
    cdef readonly BufferState buffer
    cdef RequestSealer sealer
    cdef RequestSettler settler
    cdef double timeout, patience
    cdef object view                    # of the topic, when it was lent
    cdef TopicMetrics topic_metrics
    cdef readonly bint offered          # callers may use it
    cdef readonly int64_t sent          # requests since it was lent
    cdef ProduceRequest request         # written, and not settled by the caller

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
        self.sent = 0
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
