# Waiting for sockets, and what is read from them: as few turns at the GIL as can be.
#
# Python's own calls let the GIL go for each recv() and send(), even where they do not wait, and
# beside a busy thread it takes long to come back (see gil.pxi). Here it is let go for the wait.

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
    static int is_no_room(int problem) { return problem == EAGAIN || problem == EWOULDBLOCK; }
    """
    cdef struct pollfd:
        int fd
        short events
        short revents
    int kernel_poll(pollfd *fds, int count, int timeout) nogil
    Py_ssize_t kernel_read(int fd, void *into, size_t size)
    void kernel_poke(int fd)
    bint is_no_room(int problem)


cpdef enum:
    MOST_WATCHED = 8            # how many poll_events() waits for


def poll_events(list watched not None, int timeout_ms):
    """Wait for one of *watched*, pairs ``(fd, events of poll(2))``; -1 ms: for ever.

    Returns the events of each, zeros if the time has passed or a signal came.
    """
    cdef pollfd fds[MOST_WATCHED]
    cdef int count = len(watched), i, found, problem
    if count > MOST_WATCHED:
        raise ValueError(f"{count} descriptors; at most {MOST_WATCHED}")
    for i in range(count):
        with cython.boundscheck(True):  # a pair may be Python code, which changes the list
            fds[i].fd, fds[i].events = watched[i]
        fds[i].revents = 0
    with nogil:
        found = kernel_poll(fds, count, timeout_ms)
        problem = errno
        want_gil()
    got_gil()
    if found < 0:
        raise OSError(problem, "poll")
    return [fds[i].revents for i in range(count)]


def read_into(int fd, into):
    """What has come on a non-blocking socket, into the buffer *into*: how many bytes; None for
    none now, 0 for the end of the stream. Raises OSError."""
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
        raise OSError(problem, "the socket cannot be read from")
    return count


def poke(sock):
    """Send one byte to a non-blocking socket, if it takes one and is not closed.

    The GIL is kept from the look at its number to the end: closed in between, the number could be
    another socket's.
    """
    cdef int fd = sock.fileno()
    kernel_poke(fd)


def drain(int fd):
    """Read and forget what has come on a non-blocking socket."""
    cdef char buffer[4096]
    while kernel_read(fd, buffer, sizeof(buffer)) == sizeof(buffer):
        pass
