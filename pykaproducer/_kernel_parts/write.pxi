# Writing to a socket: a whole request without the GIL.

cdef extern from *:
    """
    #include <errno.h>
    #include <poll.h>
    #include <sys/socket.h>
    #include <sys/uio.h>

    #ifndef MSG_NOSIGNAL        /* macOS; Python ignores SIGPIPE */
    #define MSG_NOSIGNAL 0
    #endif
    #define MOST_PIECES 1024    /* IOV_MAX of Linux and macOS */

    /* Writes until everything is written, `patience` ms have passed since the socket was first
       full, or an error occurs. Returns the bytes written; if that is 0, errno is the reason (0:
       the socket is full). */
    static Py_ssize_t kernel_write(int fd, struct iovec *iov, int count, int patience) {
        Py_ssize_t total = 0;
        int64_t began = -1, waited = 0;     /* -1: the socket has not been full yet */
        errno = 0;
        while (count > 0) {
            struct msghdr message;
            memset(&message, 0, sizeof message);
            message.msg_iov = iov;
            message.msg_iovlen = count < MOST_PIECES ? count : MOST_PIECES;
            Py_ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
            if (sent < 0) {
                if (errno == EINTR) continue;
                if (errno != EAGAIN && errno != EWOULDBLOCK) break;
                errno = 0;
                /* A peer that reads a little at a time must not block the caller for longer. */
                if (began < 0) began = kernel_clock(0);
                waited = (kernel_clock(0) - began) / 1000000;
                struct pollfd ready = {fd, POLLOUT, 0};
                if (waited >= patience || poll(&ready, 1, patience - (int)waited) <= 0) {
                    errno = 0;
                    break;
                }
                continue;
            }
            total += sent;
            while (count > 0 && (size_t)sent >= iov->iov_len) {
                sent -= iov->iov_len; iov++; count--;
            }
            if (count > 0) {
                iov->iov_base = (char *)iov->iov_base + sent;
                iov->iov_len -= sent;
            }
        }
        return total;
    }
    """
    cdef struct iovec:
        void *iov_base
        size_t iov_len
    int errno
    Py_ssize_t kernel_write(int fd, iovec *iov, int count, int patience) nogil


#: Number of buffers that write_buffers() writes without allocating memory.
cdef enum:
    _FEW_PIECES = 64


def write_buffers(int fd, buffers, int patience_ms):
    """Write *buffers* to a non-blocking socket, waiting for room without the GIL.

    Returns the number of bytes written, fewer than all if the socket was full and did not accept
    the rest within *patience_ms*, or if memory is short. Raises OSError if nothing could be
    written.

    A large request written piece by piece from Python would reacquire the GIL for each piece, and
    each time might wait for a switch interval while user code loops over ``send()``.
    """
    cdef iovec few[_FEW_PIECES]
    cdef Py_buffer few_views[_FEW_PIECES]
    cdef iovec *iov = few
    cdef Py_buffer *views = few_views
    cdef Py_ssize_t room = _FEW_PIECES, count = 0, i, written, number = len(buffers)
    cdef void *memory = NULL
    cdef int problem
    if number > _FEW_PIECES:
        memory = malloc(number * (sizeof(iovec) + sizeof(Py_buffer)))
    if memory != NULL:
        views = <Py_buffer *>memory
        iov = <iovec *>(views + number)
        room = number
    try:
        for buffer in buffers:
            if count == room:
                break
            PyObject_GetBuffer(buffer, &views[count], PyBUF_SIMPLE)
            iov[count].iov_base = views[count].buf
            iov[count].iov_len = views[count].len
            count += 1
        with nogil:
            written = kernel_write(fd, iov, <int>count, patience_ms)
            problem = errno
            want_gil()
        got_gil()
        if written == 0 and problem:
            raise OSError(problem, "cannot write to the socket")
        return written
    finally:
        for i in range(count):
            PyBuffer_Release(&views[i])
        free(memory)
