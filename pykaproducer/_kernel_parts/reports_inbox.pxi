# How settled rows come to the stage Reports, from a Bridge or a caller.

@cython.final
cdef class ReportsInbox:
    """The inbox of the stage Reports, for a Bridge or a caller that settles a caller's request.

    *items*: its deque. *wake_event*: wakes the stage. *incomplete*: the chunks for which a flush
    waits. *metrics*: of the producer. Compiled, because Python code between the response and the
    callback would cost more than the rest.
    """

    cdef object items, put, incomplete
    cdef dict live, barriers
    cdef RequestMetrics metrics
    cdef WakeEvent wake_event
    #: Whether the stage is known to have a thread, and calls callbacks.
    cdef public bint is_open

    def __init__(self, items, WakeEvent wake_event not None, incomplete,
                 RequestMetrics metrics not None):
        self.items = items
        self.put = items.append
        self.metrics = metrics
        self.wake_event = wake_event
        self.incomplete = incomplete
        self.live = incomplete.live
        self.barriers = incomplete.barriers

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
            self.leave(part.chunk)
            request.finished[0] = None
        return False

    def run_callbacks(self, on_error, Py_ssize_t most):
        """Run the callbacks of at most *most* slices in the inbox, up to an item not ordinary.

        A slice is ordinary if no row of its chunk has failed, and there is no trace. *on_error*: as
        for :meth:`Slice.report`. Returns whether there was a slice, and all were ordinary.
        """
        cdef Slice part
        cdef Py_ssize_t count = len(self.items), i
        for i in range(min(count, most)):
            if not self.items:
                return False            # in the child of a fork: see Worker.abandon()
            item = self.items[0]
            if type(item) is not Slice or self.metrics.trace is not None:
                return False
            part = <Slice>item
            if has_failures(part.chunk):
                return False
            try:
                last = part.report(on_error)
            except MemoryError:
                return False            # the stage pauses, if there is still none
            if self.items:              # not in the child of a fork
                self.items.popleft()
            if last:
                self.leave(part.chunk)
        return 0 < count <= most

    cdef int leave(self, Chunk chunk) except -1:
        """Remove *chunk*, all rows of which are reported, from those for which a flush waits.

        Nothing else would, so this waits for memory.
        """
        while True:
            try:
                if FREE_THREADED or self.barriers:
                    self.incomplete.leave(chunk)
                else:                   # arm() enters a barrier before it looks at `live`
                    self.live.pop(chunk.serial, None)
                return 0
            except (MemoryError, SystemError):  # the latter: see _util/memory.py
                pause_for_memory()
