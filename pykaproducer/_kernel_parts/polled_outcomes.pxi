# The outcomes of messages with librdkafka's interface, on their way to poll().

cdef class PolledOutcomes

# Maximum number of reports in one event of the queue. Served ones are released with the last.
cdef Py_ssize_t _LONGEST_RUN = 1000


cdef class DeliveryReport:
    """The base class of ``Message``, the argument of delivery callbacks.

    Fields that are unknown are None. The fields of an instance that was created in Python are in
    a tuple, in the order of the constructor's arguments.

    The garbage collector does not visit the report of a delivered message. It refers only to a
    topic, a key and a value, so it cannot be part of a cycle, and a program may have a million.
    """

    cdef tuple fields                   # None: the fields are the following
    cdef bint reported                  # by fill(); otherwise no constructor was called
    cdef str topic_name
    cdef int32_t partition_number
    cdef int64_t offset_number
    cdef object key_bytes, value_bytes, failure
    cdef int64_t time                   # ms since the epoch
    cdef int time_type                  # 1: the producer's (CreateTime), 2: the broker's
    cdef double seconds

    cdef fill(self, Chunk chunk, uint32_t row, object error, double started):
        cdef Outcome outcome = outcome_of(chunk, row)
        self.reported = True
        self.topic_name = chunk.topic
        self.partition_number = outcome.partition
        self.offset_number = outcome.offset if error is None else -1
        self.key_bytes = chunk.payload_of(row, 0)
        self.value_bytes = chunk.payload_of(row, 1)
        self.failure = error
        self.time = outcome.timestamp
        self.time_type = 2 if outcome.flags & LOG_TIME else 1
        if started >= 0:
            self.seconds = kernel_clock(0) / <double>_NS - started
        else:                           # the timestamp is the time of acceptance
            self.seconds = max(0.0, kernel_clock(1) / <double>_NS - outcome.timestamp / 1000.0)
        if error is None:
            PyObject_GC_UnTrack(<PyObject *>self)

    @property
    def _fields(self):
        cdef tuple made = self.made_fields()
        if made is not None:
            return made
        made = self.reported_fields()
        with cython.critical_section(self):
            if self.fields is None:
                self.fields = made
            made = self.fields
        return made

    cdef tuple made_fields(self):
        """Return the tuple of fields, or None if there is none yet."""
        cdef tuple fields
        with cython.critical_section(self):
            fields = self.fields
        return fields

    cdef tuple reported_fields(self):
        cdef object when = (0, -1)
        if not self.reported:
            return (None, 0, 0, None, None, None, None, (0, 0), 0.0, 0, None)
        if self.failure is None:
            when = (self.time_type, self.time)
        return (
            self.topic_name,
            None if self.partition_number < 0 else self.partition_number,
            None if self.offset_number < 0 else self.offset_number,
            self.key_bytes, self.value_bytes, None, self.failure, when, self.seconds, None, None,
        )

    @_fields.setter
    def _fields(self, tuple fields not None):
        if len(fields) != 11:
            raise ValueError(f"a message has 11 fields, not {len(fields)}")
        with cython.critical_section(self):
            self.fields = fields
            if not PyObject_GC_IsTracked(<PyObject *>self):
                PyObject_GC_Track(<PyObject *>self)     # a program may set any object

    def topic(self):
        """Return the topic."""
        cdef tuple fields = self.made_fields()
        return self.topic_name if fields is None else fields[0]

    def partition(self):
        """Return the partition, None if none was chosen."""
        return self._fields[1]

    def offset(self):
        """Return the offset, None if not delivered or not returned by the broker."""
        return self._fields[2]

    def key(self):
        """Return the key, as bytes."""
        cdef tuple fields = self.made_fields()
        return self.key_bytes if fields is None else fields[3]

    def value(self):
        """Return the value, as bytes."""
        cdef tuple fields = self.made_fields()
        return self.value_bytes if fields is None else fields[4]

    def headers(self):
        """Return None in a delivery report, as in confluent-kafka."""
        return self._fields[5]

    def error(self):
        """Return the KafkaError of a failed message; None if it was delivered."""
        cdef tuple fields = self.made_fields()
        return self.failure if fields is None else fields[6]

    def timestamp(self):
        """Return ``(type, milliseconds since the epoch)``."""
        return self._fields[7]

    def latency(self):
        """Return the seconds from produce() to the outcome."""
        return self._fields[8]

    def leader_epoch(self):
        """Return None in a delivery report."""
        return self._fields[9]

    def delivery_count(self):
        """Return None: it belongs to consumers."""
        return self._fields[10]


@cython.final
cdef class ReportRun:
    """Successive reports for one callback: an event of an :class:`EventQueue`."""

    cdef object callback
    cdef list reports
    cdef Py_ssize_t next                # index of the first one that is not served


@cython.final
cdef class EventQueue:
    """The events for poll(): outcomes, and other calls. Any thread may add and serve them.

    An event is served once. Before its callback is called, it is removed from the queue, and all
    others stay there. So a callback may poll, raise, or fork (the child then calls :meth:`clear`).
    """

    cdef object events                  # a deque of ReportRun and (function, arguments)
    cdef ReportRun last                 # the last one, if reports may be added to it
    cdef int64_t n_events
    cdef Guard guard                    # of all of these

    def __cinit__(self):
        init_guard(&self.guard)
        self.events = deque()

    @property
    def count(self):
        """Return the number of events."""
        return load_long(&self.n_events)

    cdef add(self, callback, DeliveryReport report):
        cdef ReportRun last, fresh = None
        cdef bint added = False
        while not added:
            enter_guard(&self.guard)
            try:
                last = self.last        # is released after the guard
                if fresh is not None:
                    self.events.append(fresh)
                    self.last = fresh
                    added = True
                elif (last is not None and last.callback is callback
                        and len(last.reports) < _LONGEST_RUN):
                    last.reports.append(report)
                    added = True
                if added:
                    increase(&self.n_events, 1)
            finally:
                leave_guard(&self.guard)
            if not added:
                last = None             # not in the guard: see "Locks" in _kernel.pyx
                fresh = ReportRun.__new__(ReportRun)
                fresh.callback = callback
                fresh.reports = [report]    # never empty: serve() relies on it

    def put(self, function, tuple arguments not None):
        """Add a call of ``function(*arguments)``."""
        cdef ReportRun last
        event = function, arguments
        enter_guard(&self.guard)
        try:
            last = self.last            # is released after the guard
            self.last = None
            self.events.append(event)
            increase(&self.n_events, 1)
        finally:
            leave_guard(&self.guard)

    cdef put_back(self, callback, DeliveryReport report):
        """Make *report* the first event again."""
        cdef ReportRun run = ReportRun.__new__(ReportRun)
        run.callback = callback
        run.reports = [report]
        enter_guard(&self.guard)
        try:
            self.events.appendleft(run)
            increase(&self.n_events, 1)
        finally:
            leave_guard(&self.guard)

    def clear(self):
        """Remove all events, in the child of a fork: they are the parent's."""
        init_guard(&self.guard)
        self.events = deque()
        self.last = None
        self.n_events = 0

    def serve(self, translate):
        """Serve all events that are there now, and return their number.

        A callback is called with the error and the report. *translate(error)* returns the error to
        use. An exception of a callback propagates; the other events remain in the queue.
        """
        cdef DeliveryReport report
        cdef ReportRun run, last
        cdef Py_ssize_t served = 0
        cdef int64_t now = load_long(&self.n_events)
        while served < now:
            # Those of the last round, not in the guard: this may run a finalizer, which may poll.
            event = run = report = last = None
            enter_guard(&self.guard)
            try:
                if not self.n_events:   # another thread polls as well
                    break
                event = self.events[0]
                run = <ReportRun>event if type(event) is ReportRun else None
                report = last = None
                if run is not None:
                    report = <DeliveryReport>run.reports[run.next]
                    run.reports[run.next] = None
                    run.next += 1
                if run is None or run.next == len(run.reports):
                    self.events.popleft()
                    if self.last is run:
                        last = self.last    # is released after the guard
                        self.last = None
                increase(&self.n_events, -1)
            finally:
                leave_guard(&self.guard)
            served += 1
            if report is None:
                function, arguments = event
                function(*arguments)
            else:
                if report.failure is not None:
                    try:
                        report.failure = translate(report.failure)
                    except BaseException:   # a KeyboardInterrupt, before the callback is called
                        self.put_back(run.callback, report)
                        raise
                run.callback(report.failure, report)
        return served


@cython.final
cdef class ReportTo:
    """The ``on_delivery`` of messages whose outcome goes to a :class:`PolledOutcomes`.

    *callback*: called by poll() with the error and the report. None: the outcome is only counted.
    *started*: when produce() was called (monotonic seconds); negative: the message's timestamp.
    """

    cdef readonly PolledOutcomes outcomes
    cdef readonly object callback
    cdef double started

    def __cinit__(self, PolledOutcomes outcomes not None, callback, double started=-1.0):
        self.outcomes = outcomes
        self.callback = callback
        self.started = started

    def __call__(self, error, delivery):
        self.receive(delivery.chunk, delivery.row, error)

    cdef receive(self, Chunk chunk, uint32_t row, object error):
        self.outcomes.receive(self, chunk, row, error)


@cython.final
cdef class PolledOutcomes:
    """The receiver of a producer's outcomes, in its Reports thread or in a caller's thread.

    *queue*: the events that poll() serves. *waiters*: a list; if it is not empty, *wake()* is
    called after each outcome. *only_errors*: do not queue delivered messages. *kind*: a subclass of
    :class:`DeliveryReport`.
    """

    cdef int64_t n_finished, n_settled, n_failed
    cdef object first_failure
    cdef Guard guard                    # of the last two
    cdef readonly EventQueue queue
    cdef list waiters
    cdef object wake, kind
    cdef bint only_errors

    def __cinit__(self, EventQueue queue not None, list waiters not None, wake, type kind not None,
                  *, bint only_errors):
        init_guard(&self.guard)
        if not issubclass(kind, DeliveryReport):
            raise TypeError(f"kind must be a subclass of DeliveryReport, not {kind!r}")
        self.queue = queue
        self.waiters = waiters
        self.wake = wake
        self.kind = kind
        self.only_errors = only_errors

    @property
    def finished(self):
        """Return the number of messages of which the outcome has been received."""
        return load_long(&self.n_finished)

    @property
    def settled(self):
        """Return the number of those without a callback, for which nothing is queued."""
        return load_long(&self.n_settled)

    def take_failures(self):
        """Return how many of these have failed since the last call, and the first error."""
        cdef object error
        cdef int64_t failed
        enter_guard(&self.guard)
        failed = self.n_failed
        error = self.first_failure
        self.n_failed = 0
        self.first_failure = None
        leave_guard(&self.guard)
        return failed, error

    cdef void count_failure(self, error) noexcept:
        enter_guard(&self.guard)
        if self.first_failure is None:
            self.first_failure = error
        self.n_failed += 1
        leave_guard(&self.guard)

    cdef receive(self, ReportTo to, Chunk chunk, uint32_t row, object error):
        cdef DeliveryReport report
        if to.callback is None:
            atomic_add(&self.n_settled, 1)
            if error is not None:
                self.count_failure(error)
        try:
            if to.callback is not None and (error is not None or not self.only_errors):
                report = <DeliveryReport>DeliveryReport.__new__(self.kind)
                # Key and value are still readable here.
                report.fill(chunk, row, error, to.started)
                self.queue.add(to.callback, report)
        finally:
            # After the event, so that a sum of both counts never misses the message. Also if there
            # is no memory for the report, because flush() would wait for the message forever.
            atomic_add(&self.n_finished, 1)
        if self.waiters:
            self.wake()
