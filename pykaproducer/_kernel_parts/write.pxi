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

    /* Writes until all is written, `patience` ms were spent waiting for room, or it fails.
       Returns the bytes written; if that is 0, errno says why (0: no room). */
    static Py_ssize_t kernel_write(int fd, struct iovec *iov, int count, int patience) {
        Py_ssize_t total = 0;
        int64_t began = -1, waited = 0;     /* -1: it has not had to wait yet */
        errno = 0;
        while (count > 0) {
            struct msghdr message;
            memset(&message, 0, sizeof message);
            message.msg_iov = iov;
            message.msg_iovlen = count;
            Py_ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
            if (sent < 0) {
                if (errno == EINTR) continue;
                if (errno != EAGAIN && errno != EWOULDBLOCK) break;
                errno = 0;
                /* A peer that takes a little at a time must not keep its owner here. */
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


cpdef enum:
    MOST_BUFFERS = 64           # how many write_buffers() writes in one call


def write_buffers(int fd, buffers, int patience_ms):
    """Write *buffers* to a non-blocking socket, waiting for room without the GIL.

    Returns how many bytes were written: fewer than all when the socket was full and had not taken
    the rest *patience_ms* later; at most MOST_BUFFERS are looked at. Raises OSError when nothing
    could be written.

    A large request written piece by piece from Python would take the GIL once a piece, and each
    time may wait a switch interval for it while user code loops over ``send()``.
    """
    cdef iovec iov[MOST_BUFFERS]
    cdef Py_buffer views[MOST_BUFFERS]
    cdef int count = 0, i, problem
    cdef Py_ssize_t written
    try:
        for buffer in buffers:
            if count == MOST_BUFFERS:
                break
            PyObject_GetBuffer(buffer, &views[count], PyBUF_SIMPLE)
            iov[count].iov_base = views[count].buf
            iov[count].iov_len = views[count].len
            count += 1
        with nogil:
            written = kernel_write(fd, iov, count, patience_ms)
            problem = errno
            want_gil()
        got_gil()
        if written == 0 and problem:
            raise OSError(problem, "the socket cannot be written to")
        return written
    finally:
        for i in range(count):
            PyBuffer_Release(&views[i])
