# How settled rows come to the stage Reports, from a Bridge or a caller.

@cython.final
cdef class ReportsInbox:
    """The inbox of the stage Reports, for a Bridge or a caller that settles a caller's request.

    *put*: appends a slice to it. *wake_event*: wakes the stage. *incomplete*: the chunks for which
    a flush waits. Compiled, because Python code between the response and the callback would cost
    more than the rest.
    """

    cdef object put, incomplete
    cdef dict live
    cdef WakeEvent wake_event
    #: Whether the stage is known to have a thread, and calls callbacks.
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
        if not self.may_enter(chunk):
            return False
        self.live[chunk.serial] = chunk
        return True

    cdef bint may_enter(self, Chunk chunk) except -1:
        """Return whether *chunk* may be settled before Python code runs.

        That is if no flush waits for outcomes only, and Reports runs if it has something to report.
        """
        if self.incomplete.watches_outcomes:
            return False
        return self.is_open or not (has_callbacks(chunk) or has_failures(chunk))

    cdef bint report(self, ProduceRequest request) except -1:
        """Report the first slice of settled rows of *request*, whose chunk was entered.

        Returns whether the stage is to be woken. If there is no memory, the request keeps what is
        not reported yet.
        """
        cdef Slice part = <Slice>request.reports[0]
        if has_waiters(part.chunk):
            wake_waiters(part)
        if has_callbacks(part.chunk) or has_failures(part.chunk):
            self.put(part)
            request.drop_report()
            want_gil()
            return True
        request.drop_report()
        if part.finish():
            request.finished[0] = part.chunk    # until it has left
            self.incomplete.leave(part.chunk)
            request.finished[0] = None
        return False
