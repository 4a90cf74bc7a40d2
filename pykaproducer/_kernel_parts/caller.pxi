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
#    as usual. A caller begins if the response is an error or malformed, if the socket takes only a
#    part of a request, or if a signal handler raises in OpenSSL; the Bridge, if the response is
#    late; a stage, if it needs the partition or the connection, or all messages (a flush). A caller
#    whose timeout expires, or whose wait a signal interrupts, only leaves the response to the
#    Bridge.
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
    # Unlike kernel_poll(), it returns -1 if a signal has interrupted it.
    int poll_once "poll"(pollfd *fds, int count, int timeout) nogil
    int close_descriptor "close"(int fd)

#: Maximum number of rows that a caller sends.
cdef uint32_t _CALLER_ROWS = 128
#: Maximum number of batches in a request, and of buffers in its frame.
cdef enum:
    _CALLER_BATCHES = 16
    _CALLER_BUFFERS = 2 * _CALLER_BATCHES + 2
#: A request that has no response after this time is handed over. The Bridge waits as long for a
#: caller's call of OpenSSL.
cdef int _CALLER_WAIT_MS = 1000
#: How long the Bridge leaves a large message to a caller that may wait for it.
cdef int64_t _LARGE_WAITS_NS = 50000
#: How often the Bridge looks whether a caller has encoded it.
cdef int64_t _LARGE_TAKES_NS = 20000000
#: How long the Bridge waits for room when it writes a request with TLS: PATIENCE_MS of Connection.
cdef int _BRIDGE_WAITS_MS = 20
#: A timer that rings within this time is set anew for each request (seconds).
cdef double _NEAR = 0.1
#: Stands for "no timeout" of a caller (seconds).
cdef double _NO_TIMEOUT = 3600
#: A message with less time left is left to the stages.
cdef int64_t _CALLER_LEAST_NS = 200000000


def this_thread_runs_stages(bint runs):
    """Record whether the calling thread belongs to a stage. Its callbacks must not wait."""
    set_runs_stages(runs)


@cython.final
cdef class CallerRoute:
    """A topic's partitioner, with what it needs, as callers use it.

    It is valid while *metadata* has this *view* of the topic. *drives*: ``send()`` itself sends,
    too, not only a caller that waits. *linger*: how long messages linger (seconds).
    """

    cdef bint drives
    cdef double linger
    #: When a caller sent last (monotonic seconds); 0: never.
    cdef readonly double used_at
    cdef Partitioner partitioner
    cdef object metadata, view
    cdef RequestMetrics metrics
    cdef str topic
    cdef int32_t partitions
    cdef bytes available

    def __init__(self, Partitioner partitioner not None, metadata, view,
                 RequestMetrics metrics not None, *, bint drives, double linger,
                 double used_at):
        self.drives = drives
        self.used_at = used_at
        self.linger = linger
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
                and self.partitioner.bounds is None)


@cython.final
cdef class CallerPath:
    """A partition of which the stages have nothing, as callers use it.

    *buffer*: its partition buffer. *sealer*, *settler*, *window*: those of its broker.
    """

    cdef CallerLink link
    cdef BufferState buffer
    cdef RequestSealer sealer
    cdef RequestSettler settler
    cdef object view                    # of the topic, when it was lent
    cdef TopicMetrics topic_metrics
    cdef bint offered                   # callers may use it
    cdef readonly int64_t n_sent        # requests since it was lent
    cdef list requests                  # written by callers, and not settled here
    cdef WindowState window

    def __init__(self, CallerLink link not None, BufferState buffer not None,
                 RequestSealer sealer not None, RequestSettler settler not None,
                 WindowState window not None):
        self.link = link
        self.buffer = buffer
        self.sealer = sealer
        self.settler = settler
        self.window = window
        self.requests = []

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
                    drop(path.requests, request)
        return found
