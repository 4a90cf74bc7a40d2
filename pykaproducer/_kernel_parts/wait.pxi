# Waiting for sockets and reading from them, with as few GIL switches as possible.
#
# Python's own calls release the GIL for each recv() and send(), even if they do not wait. Next to a
# busy thread, reacquiring it takes long (see gil_handoff.pxi). Here it is released only to wait.

cdef extern from *:
    """
    static int kernel_poll(struct pollfd *fds, int count, int timeout) {
        int found = poll(fds, count, timeout);
        return found < 0 && (errno == EINTR || errno == EAGAIN) ? 0 : found;
    }
    static Py_ssize_t kernel_read(int fd, void *into, size_t size) {
        Py_ssize_t count;
        do {
            count = recv(fd, into, size, MSG_DONTWAIT);
        } while (count < 0 && errno == EINTR);
        return count;
    }
    static void kernel_poke(int fd) {
        while (send(fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno == EINTR);
    }
    static int kernel_lacks_memory(size_t size) {
        void *volatile some = malloc(size);     /* volatile: it is not optimised away */
        free(some);
        return some == NULL;
    }
    static void kernel_pause(void) { poll(NULL, 0, 1); }
    static int is_no_room(int problem) { return problem == EAGAIN || problem == EWOULDBLOCK; }
    """
    cdef struct pollfd:
        int fd
        short events
        short revents
    int kernel_poll(pollfd *fds, int count, int timeout) nogil
    Py_ssize_t kernel_read(int fd, void *into, size_t size)
    void kernel_poke(int fd)
    void kernel_pause() nogil
    bint is_no_room(int problem)
    bint kernel_lacks_memory(size_t size)


cpdef enum:
    MOST_WATCHED = 8            # maximum number of descriptors for poll_events()


def monotonic():
    """Return what ``time.monotonic()`` does, even if a test has replaced that."""
    return kernel_clock(0) / <double>_NS


def lacks_memory(size_t size=32 << 10):
    """Return whether malloc() refuses *size* bytes, by default what a step of a stage needs."""
    return kernel_lacks_memory(size)


def pause_for_memory():
    """Let other threads run, which may release memory, for a millisecond. Needs none."""
    with nogil:
        kernel_pause()


def call_in_any_case(function, first, second):
    """Call *function* until it has memory to begin, and does not raise MemoryError."""
    while True:
        try:
            return function(first, second)
        except (MemoryError, SystemError):      # the latter: see _util/memory.py
            pause_for_memory()


def poll_events(list watched not None, int timeout_ms):
    """Wait for one of *watched*, pairs ``(fd, events of poll(2))``, for at most *timeout_ms*.

    -1 waits forever. Returns the events of each descriptor, all 0 after a timeout or a signal.
    Raises ValueError for more than MOST_WATCHED descriptors, and OSError.
    """
    return polled_events(watched, timeout_ms)


cdef list polled_events(list watched, int timeout_ms, WakeEvent first=None):
    """*first*: is set once the GIL is released, so that the thread need not wait for it."""
    cdef pollfd fds[MOST_WATCHED]
    cdef int count = len(watched), i, found, problem
    cdef list events = []
    cdef bint wakes = first is not None
    if count > MOST_WATCHED:
        raise ValueError(f"cannot poll {count} descriptors: the maximum is {MOST_WATCHED}")
    for i in range(count):
        with cython.boundscheck(True):  # unpacking a pair may run Python code that changes the list
            fds[i].fd, fds[i].events = watched[i]
        fds[i].revents = 0
    with nogil:
        if wakes:
            set_event(first)
        found = kernel_poll(fds, count, timeout_ms)
        problem = errno
        want_gil()
    got_gil()
    if found < 0:
        raise OSError(problem, "poll")
    for i in range(count):
        events.append(fds[i].revents)
    return events


def read_into(int fd, into):
    """Read from a non-blocking socket into the buffer *into* and return the number of bytes.

    Returns None if no data is available, 0 at the end of the stream. Raises OSError.
    """
    cdef Py_buffer view
    cdef Py_ssize_t count
    cdef int problem
    PyObject_GetBuffer(into, &view, PyBUF_WRITABLE)
    try:
        count = kernel_read(fd, view.buf, view.len)
        problem = errno
    finally:
        PyBuffer_Release(&view)
    if count < 0:
        if is_no_room(problem):
            return None
        raise OSError(problem, "cannot read from the socket")
    return count


@cython.final
cdef class WakeEvent:
    """An auto-reset event on which a stage's thread sleeps.

    It stays set until the thread consumes it. Setting it again before that has no further effect.
    Only one thread waits for it. Any thread may set it, and so may a
    signal handler that interrupts a thread while it sets the event.

    A ``queue.SimpleQueue`` of tokens is not used, because its ``get`` with a timeout may wait
    forever, which would stop a stage. Seen in CPython 3.11:

    1. the queue is empty, and its lock happens to be free;
    2. the timeout expires while ``get`` acquires the lock;
    3. the remaining time is negative, which counts as no timeout.
    """

    cdef void *lock                     # locked while the event is not set, and soon after
    cdef int value                      # 1: it is set

    def __cinit__(self):
        self.lock = PyThread_allocate_lock()
        if self.lock == NULL:
            raise MemoryError()
        PyThread_acquire_lock_timed(self.lock, 0, 0)

    def __dealloc__(self):
        if self.lock != NULL:
            PyThread_free_lock(self.lock)

    @property
    def is_set(self):
        """Return whether it is set and has not been consumed yet."""
        return load_int(&self.value) != 0

    def set(self):
        """Set the event: wake the waiting thread, or let its next wait return at once."""
        set_event(self)

    def wait(self, double timeout=-1):
        """Wait until it is set, for at most *timeout* seconds. Called by :meth:`Clock.wait`."""
        cdef int64_t end = kernel_clock(0) + <int64_t>(timeout * _NS)
        cdef int64_t left = -1
        cdef int found
        while True:
            if timeout >= 0:
                left = max(0, (end - kernel_clock(0)) // 1000)
            with nogil:
                found = PyThread_acquire_lock_timed(self.lock, left, 1)
            if found == 1:
                # A thread that finds the event set puts its item first and does not set it again.
                # The waiting thread looks for items only after this line, so it finds that one.
                exchange_int(&self.value, 0)
                return True
            if found == 0:
                return False
            PyErr_CheckSignals()


cdef inline void set_event(WakeEvent event) noexcept nogil:
    if not exchange_int(&event.value, 1):
        PyThread_release_lock(event.lock)


@cython.final
cdef class Poker:
    """Sends a byte to the non-blocking socket *fd*, unless one has been sent and not read yet.

    The owner of the socket calls :meth:`close` before it closes it: the descriptor may belong to
    another socket afterwards.
    """

    cdef int fd
    cdef int poked
    cdef Guard guard                    # of `fd`

    def __init__(self, int fd):
        init_guard(&self.guard)
        self.fd = fd

    def poke(self, *, bint surely=False):
        """Send a byte, unless the flag is set, and set it. *surely*: ignore the flag.

        Has no effect if the socket is full or closed.
        """
        if not surely and exchange_int(&self.poked, 1):
            return
        enter_guard(&self.guard)
        if self.fd >= 0:
            kernel_poke(self.fd)
        leave_guard(&self.guard)
        want_gil()

    def reset(self):
        """Clear the flag."""
        exchange_int(&self.poked, 0)

    def close(self):
        """Send nothing any more."""
        enter_guard(&self.guard)
        self.fd = -1
        leave_guard(&self.guard)


def drain(int fd):
    """Read and discard all available data of a non-blocking socket."""
    cdef char buffer[4096]
    while kernel_read(fd, buffer, sizeof(buffer)) == sizeof(buffer):
        pass
