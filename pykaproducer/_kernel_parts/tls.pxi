# The bytes of a connection with TLS: encrypted and written, read and decrypted.
#
# It is compiled because a caller uses it, too, in a user's thread (see caller.pxi): Python code
# could be interrupted by a signal handler between any two bytecodes. Here a signal handler or
# another thread runs only during a call of OpenSSL, which releases the GIL, and after which the
# state is consistent.
#
# **Threads.** Two threads must not use an OpenSSL connection at once, not even one to read and one
# to write. A violation would corrupt memory. So each call has an owner, and a caller never waits
# for another owner:
#
# 1. A stage's own thread releases the stage (`_running`) only to wait: in the selector, which uses
#    only the descriptor, or in `CallerLink.poll`, where it counts as a caller: see 2. Another
#    stage's thread that acquires the stage encrypts and writes a small request in place, but only
#    after `CallerLink.withhold` has found the connection unused. The own thread acquires the stage
#    again before it reads.
# 2. A caller uses the stream of a Bridge only while the connection is lent (`CallerLink.fd`). A
#    Bridge that takes it back lets the caller's call end before it uses the stream itself:
#    `CallerLink.wait_for_stream()`.
# 3. A caller that finds it in use leaves its request to the owner, which looks for one after its
#    call: `CallerLink.write_encrypted()`.

from libc.errno cimport EINTR
from libc.string cimport strerror

cdef enum:
    _TLS_RECORD = 16384         # maximum number of bytes in a record
    _TLS_PIECE = 512 * 1024     # maximum number of bytes encrypted at a time
    _TLS_PIECES = 4             # pieces that one call of send() encrypts at most
    _TLS_ROOM = 64 * 1024       # bytes read from the socket at a time


@cython.final
cdef class TlsPiece:
    """An encrypted piece, and how much of it has been given to the socket."""

    cdef bytes data
    cdef Py_ssize_t plain               # its bytes before they were encrypted
    cdef Py_ssize_t written, reported

    cdef Py_ssize_t readable(self) noexcept:
        """Return how many bytes of the piece the broker can read: those of complete records."""
        cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(self.data)
        cdef Py_ssize_t plain = 0, at = 0
        if self.written == len(self.data):
            return self.plain
        while at + 5 <= self.written:
            at += 5 + <Py_ssize_t>get_be(p + at + 3, 2)
            if at > self.written:
                break
            plain += _TLS_RECORD
        # The last record is shorter, and another TLS message may precede it.
        return min(plain, max(0, self.plain - 1))


@cython.final
cdef class TlsStream:
    """The OpenSSL object of a connection, its memory buffers, and its socket.

    *tls*: the ``_ssl._SSLSocket`` of an :class:`ssl.SSLObject`. (The object's own methods are
    Python code.) *fd*: the non-blocking socket. *errors*: ``SSLError`` and ``SSLWantReadError``.

    After a failure, :attr:`failure` is set: an ``SSLError``, an ``OSError`` of the socket, or an
    ``EOFError`` if the broker has closed the connection. Raises MemoryError, and what a signal
    handler raises.
    """

    cdef object __weakref__
    #: Attributes of :class:`ssl.SSLObject`.
    cdef public object tls, incoming, outgoing
    cdef object ssl_error, want_read
    cdef int fd                         # -1: closed
    cdef list pieces                    # encrypted, and not written entirely
    # Bytes given to send() that are encrypted, and not among the pieces yet.
    cdef Py_ssize_t plain
    cdef Py_ssize_t taken               # and not returned by send() yet
    cdef bint in_use                    # a thread is in send(), read() or discard()
    cdef uint8_t *room
    cdef public object failure
    #: Whether the broker has sent application data.
    cdef readonly bint heard

    def __cinit__(self):
        self.pieces = []
        self.room = <uint8_t *>malloc(_TLS_ROOM)
        if self.room == NULL:
            raise MemoryError()

    def __dealloc__(self):
        free(self.room)

    def __init__(self, tls, incoming, outgoing, int fd, errors):
        self.tls = tls
        self.incoming = incoming
        self.outgoing = outgoing
        self.fd = fd
        self.ssl_error, self.want_read = errors

    def close(self):
        """Forget the socket, which is about to be closed."""
        self.fd = -1

    cdef int enter(self) except -1:
        if self.in_use:
            raise RuntimeError("a TLS connection is used by two threads at once")
        self.in_use = True
        return 0

    # Sending ------------------------------------------------------------------------------------

    cpdef Py_ssize_t send(self, list buffers, int patience_ms) except -1:
        """Encrypt and write from the beginning of *buffers*. Return the number of bytes taken.

        A byte counts as taken when its entire record has been given to the socket: the broker
        cannot decrypt a part. Bytes that were not taken must be at the start of the next call,
        because they may have been encrypted already. *patience_ms*: how long to wait for room.
        """
        cdef Py_ssize_t taken
        self.enter()
        try:
            self.send_pieces(buffers, patience_ms)
        finally:
            self.in_use = False
        taken, self.taken = self.taken, 0
        return taken

    cdef int send_pieces(self, list buffers, int patience_ms) except -1:
        cdef Py_ssize_t ahead = self.taken
        cdef TlsPiece piece
        cdef int i
        self.take_encrypted()           # after an interrupt
        for piece in self.pieces:
            ahead += piece.plain - piece.reported
        if not self.flush(patience_ms):
            return 0
        for i in range(_TLS_PIECES):    # so that responses are read in between
            data = piece_of(buffers, ahead)
            if data is None:
                return 0
            ahead += len(data)
            if not self.encrypt(data) or not self.flush(patience_ms):
                return 0
        return 0

    cdef bint encrypt(self, data) except -1:
        """Encrypt *data*. Return False after a failure.

        OpenSSL works on memory, so its write is never incomplete.
        """
        # Set first. If there is then no memory to read the encrypted bytes, or a signal handler
        # raises, they are read later. Marked as data given to send(), they are not written by
        # receive().
        self.plain = len(data)
        try:
            self.tls.write(data)
        except self.ssl_error as error:
            self.failure = error
            return False
        finally:
            if not self.outgoing.pending:
                self.plain = 0
        self.take_encrypted()
        return True

    cpdef take_encrypted(self):
        """Take what OpenSSL has encrypted, to be written by :meth:`flush`."""
        cdef TlsPiece piece
        if self.outgoing.pending:
            piece = TlsPiece.__new__(TlsPiece)
            piece.data = self.outgoing.read()
            piece.plain, self.plain = self.plain, 0
            self.pieces.append(piece)

    cpdef bint flush(self, int patience_ms) except -1:
        """Write encrypted bytes. Return whether all are written."""
        cdef TlsPiece piece
        cdef iovec iov
        cdef Py_ssize_t count, readable
        cdef int problem
        while self.pieces:
            if self.fd < 0:
                return False            # closed in the meantime
            piece = <TlsPiece>self.pieces[0]
            iov.iov_base = PyBytes_AS_STRING(piece.data) + piece.written
            iov.iov_len = len(piece.data) - piece.written
            if patience_ms:
                with nogil:
                    count = kernel_write(self.fd, &iov, 1, patience_ms)
                    problem = errno
                    want_gil()
                got_gil()
            else:
                limit_write(&iov, 1)
                count = kernel_write(self.fd, &iov, 1, 0)
                problem = errno
            if count == 0 and problem:
                self.failure = OSError(problem, strerror(problem).decode())
                return False
            piece.written += count
            readable = piece.readable()
            self.taken += readable - piece.reported
            piece.reported = readable
            if piece.written < len(piece.data):
                return False
            del self.pieces[0]
        return True

    cpdef write_own(self):
        """Write TLS's own messages, such as an alert; ignore failures.

        Never a piece of data given to send():

        1. a piece with the requests A and B is partially written, beginning with A;
        2. a response arrives, and the rest of the piece is written here without being reported;
        3. the connection is lost in the same call, and B would count as never written.
        """
        cdef TlsPiece piece
        for piece in self.pieces:
            if piece.plain:
                return
        before = self.failure
        self.flush(0)
        if self.failure is not before:
            self.failure = before
            self.pieces.clear()

    # Receiving ----------------------------------------------------------------------------------

    def receive(self, into not None):
        """Receive into a buffer and return the number of bytes.

        If they do not fill the buffer, there is no more data now.
        """
        cdef Py_buffer view
        PyObject_GetBuffer(into, &view, PyBUF_WRITABLE)
        try:
            return self.read(<uint8_t *>view.buf, view.len)
        finally:
            PyBuffer_Release(&view)

    cdef Py_ssize_t read(self, uint8_t *into, Py_ssize_t size) except -1:
        """Read everything that OpenSSL has: the selector does not know about its buffers."""
        cdef Py_ssize_t got
        self.enter()
        try:
            got = self.read_records(into, size)
            self.take_encrypted()
            if self.failure is None:
                self.write_own()
        except BaseException:
            if self.failure is None:    # the number of bytes in `into` is lost
                self.failure = OSError(EINTR, "reading a response was interrupted")
            raise
        finally:
            self.in_use = False
        if got:
            self.heard = True
        return got

    cdef Py_ssize_t read_records(self, uint8_t *into, Py_ssize_t size) except -1:
        cdef Py_ssize_t got = 0, count, filled = _TLS_ROOM
        while got < size and self.fd >= 0:
            # Where a record is incomplete, OpenSSL would raise an error.
            if self.incoming.pending or self.tls.pending():
                count = self.decrypt(into + got, size - got)
                if count < 0:
                    break
                if count > 0:
                    got += count
                    continue
            if filled < _TLS_ROOM:
                break                   # the socket has no more for now
            filled = self.fill()
            if filled < 0:
                break
        return got

    cdef Py_ssize_t decrypt(self, uint8_t *into, Py_ssize_t size) except -2:
        """Decrypt. Return the number of bytes, 0 if no record is complete, -1 after a failure."""
        cdef Py_ssize_t count
        view = PyMemoryView_FromMemory(<char *>into, size, 0x200)   # PyBUF_WRITE
        try:
            count = self.tls.read(size, view)
        except self.want_read:
            return 0
        except self.ssl_error as error:
            self.failure = error
            return -1
        if count == 0:
            self.failure = EOFError()
            return -1
        return count

    cpdef Py_ssize_t fill(self) except -2:
        """Pass received bytes to OpenSSL. Return their number, 0: there are none, -1: failed."""
        cdef Py_ssize_t count
        cdef int problem
        if self.fd < 0:
            return 0
        count = kernel_read(self.fd, self.room, _TLS_ROOM)
        problem = errno
        if count < 0:
            if is_no_room(problem):
                return 0
            self.failure = OSError(problem, strerror(problem).decode())
            return -1
        if count == 0:
            self.failure = EOFError()
            return -1
        try:
            self.incoming.write(PyMemoryView_FromMemory(<char *>self.room, count, 0x100))
        except self.ssl_error as error:     # OpenSSL has no memory
            self.failure = error
            return -1
        return count

    def discard(self):
        """Read and discard everything up to a failure, or until there is no more."""
        cdef uint8_t rest[1024]
        self.enter()
        try:
            while self.failure is None and self.fill() > 0:
                while self.decrypt(rest, sizeof(rest)) > 0:
                    pass
        finally:
            self.in_use = False


cdef piece_of(list buffers, Py_ssize_t skip):
    """Return the bytes of *buffers* after the first *skip*, at most _TLS_PIECE; None: no more."""
    cdef list parts = []
    cdef Py_ssize_t room = _TLS_PIECE, size
    if skip == 0 and len(buffers) == 1 and type(buffers[0]) is bytes \
            and 0 < len(<bytes>buffers[0]) <= room:
        return buffers[0]
    for buffer in buffers:
        view = memoryview(buffer)
        size = len(view)
        if skip >= size:
            skip -= size
            continue
        view = view[skip:skip + room]
        skip = 0
        parts.append(view)
        room -= len(view)
        if room == 0:
            break
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else b"".join(parts)
