# produce() of producers with librdkafka's interface.

cdef class PolledAdmission:
    """The compiled base class of ``confluent.Producer``: ``produce()`` in one C call.

    A subclass sets the attributes and implements these hooks: ``_refuse_closed()`` raises;
    ``_headers_of(headers)`` returns them as a list; ``_check_room(core)`` raises if the queue is
    full, and sets ``_sure``; ``_refused(...)`` translates an error of the producer below, which is
    one of ``_refusals``.
    """

    cdef Admission core                 # the producer below; None: closed
    cdef int64_t sure                   # number of accepted messages up to which there is room
    cdef public object _on_delivery     # the callback of messages without their own, or None
    cdef ReportTo counted_only
    cdef ReportTo last                  # of the last callback
    cdef Guard guard                    # of these two, and of `core`

    def __cinit__(self):
        init_guard(&self.guard)

    @property
    def _core(self):
        """Return the producer below; None: it is closed."""
        return self.open_core()

    @_core.setter
    def _core(self, Admission core):
        cdef Admission old
        enter_guard(&self.guard)
        old = self.core                 # freed when this returns, without the guard
        self.core = core
        leave_guard(&self.guard)

    cdef Admission open_core(self):
        cdef Admission core
        enter_guard(&self.guard)
        core = self.core
        leave_guard(&self.guard)
        return core

    @property
    def _counted_only(self):
        """Return the receiver of the outcomes of messages without a callback."""
        return self.counted()

    cdef ReportTo counted(self):
        cdef ReportTo found
        enter_guard(&self.guard)
        found = self.counted_only
        leave_guard(&self.guard)
        return found

    def _connect(self, Admission core not None, ReportTo counted_only not None):
        """Use *core* from now on, and *counted_only* for its messages without a callback."""
        cdef Admission old_core
        cdef ReportTo old
        enter_guard(&self.guard)
        old_core, old = self.core, self.counted_only    # freed when this returns
        self.core = core
        self.counted_only = counted_only
        leave_guard(&self.guard)

    @property
    def _sure(self):
        """Return the number of accepted messages up to which there is room."""
        return load_long(&self.sure)

    @_sure.setter
    def _sure(self, int64_t number):
        store_long(&self.sure, number)

    def produce(self, topic, value=None, key=None, partition=-1, callback=None, on_delivery=None,
                timestamp=0, headers=None):
        """Accept one message without waiting.

        Args:
            topic: topic name.
            value, key: str, which is encoded as UTF-8, bytes, or None.
            partition: -1 lets the partitioner choose.
            callback, on_delivery: ``f(error, message)``, called by :meth:`poll` or :meth:`flush`.
            timestamp: milliseconds since the epoch; 0 means now.
            headers: a dict or a list of ``(name, str, bytes or None)``.

        Raises:
            BufferError: ``queue.buffering.max.messages`` or ``.kbytes`` is reached: call poll().
            KafkaException: the message or the topic's name is too large.
            TypeError: an argument has a wrong type.
            RuntimeError: the producer was closed.
        """
        cdef Admission core
        cdef ReportTo report
        enter_guard(&self.guard)
        core = self.core
        report = self.counted_only
        leave_guard(&self.guard)
        if core is None:
            self._refuse_closed()
            raise RuntimeError("the producer is closed")
        if type(value) is str:
            value = PyUnicode_AsUTF8String(value)
        if type(key) is str:
            key = PyUnicode_AsUTF8String(key)
        if headers is not None:
            headers = self._headers_of(headers)
        if partition is None or timestamp is None:
            raise TypeError("'NoneType' object cannot be interpreted as an integer")
        if load_long(&core.n_accepted) >= load_long(&self.sure):
            self._check_room(core)
        if on_delivery is not None:
            callback = on_delivery
        elif callback is None:
            callback = self._on_delivery
        if callback is not None:
            report = self.report_to(report, callback, timestamp)
        try:
            core.send(topic, value, key, headers, None if partition == -1 else partition,
                      timestamp or None, on_delivery=report)
        except self._refusals as error:
            self._refused(error, core, callback, topic, value, key, partition, timestamp, headers)

    def _forget_callback(self):
        """Release the callback that the last message had."""
        cdef ReportTo old
        enter_guard(&self.guard)
        old = self.last                 # freed when this returns, without the guard
        self.last = None
        leave_guard(&self.guard)

    cdef ReportTo report_to(self, ReportTo counted_only, callback, timestamp):
        """Return the receiver for *callback*.

        It is shared by all messages with the same callback, because one object per message would
        cost several times as much in the garbage collector as the message itself.
        """
        cdef ReportTo last, old, fresh
        cdef PolledOutcomes outcomes
        if counted_only is None:
            raise RuntimeError("_counted_only is not set")
        outcomes = counted_only.outcomes
        if timestamp:
            return ReportTo(outcomes, callback, kernel_clock(0) / <double>_NS)
        enter_guard(&self.guard)
        last = self.last
        leave_guard(&self.guard)
        # Each access to a bound method creates another object.
        if last is not None and last.outcomes is outcomes \
                and (last.callback is callback
                     or PyMethod_Check(callback) and last.callback == callback):
            return last
        fresh = ReportTo(outcomes, callback)
        enter_guard(&self.guard)
        old = self.last                 # freed when this returns, without the guard
        self.last = fresh
        leave_guard(&self.guard)
        return fresh
