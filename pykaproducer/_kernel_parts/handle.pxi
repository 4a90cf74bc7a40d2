# Handles: the Delivery objects that send() returns.

cdef inline Delivery new_handle(Chunk chunk, uint32_t row):
    cdef Delivery handle = Delivery.__new__(Delivery)
    handle.chunk = chunk
    handle.row = row
    enter_guard(&chunk.lock)
    hold(&chunk.held, handle_count_at(chunk, row), 1)
    leave_guard(&chunk.lock)
    return handle


@cython.no_gc
@cython.freelist(512)
@cython.final
cdef class Delivery:
    """One message's future and report: returned by ``send()`` and passed to ``on_delivery``.

    In a transaction, delivered is not visible: readers with ``isolation.level=read_committed`` see
    the message after the commit. If the transaction is aborted, a delivered message stays so.

    It holds only a chunk and a row number, so that each of a million handles costs tens of bytes
    and no garbage collection. (The collector would track a subclass written in Python.) Methods
    that wait or create objects are implemented in ``delivery.py``.
    """

    cdef readonly Chunk chunk
    cdef readonly uint32_t row

    def __dealloc__(self):
        cdef Chunk chunk = self.chunk
        cdef bint kept
        if chunk is None:
            return
        enter_guard(&chunk.lock)
        kept = (hold(&chunk.held, handle_count_at(chunk, self.row), -1) == 0
                and chunk.failed_payloads is not None)
        leave_guard(&chunk.lock)
        if kept:
            forget_payload(chunk, self.row)

    def __init__(self):
        raise TypeError("a Delivery can only be created by send()")

    def __reduce__(self):
        raise TypeError("a Delivery cannot be copied or pickled: only the original receives the "
                        "outcome")

    def __eq__(self, other):
        if not isinstance(other, Delivery):
            return NotImplemented
        return (<Delivery>other).chunk is self.chunk and (<Delivery>other).row == self.row

    def __hash__(self):
        return hash((id(self.chunk), self.row))

    @property
    def topic(self):
        """Return the topic that the message was sent to."""
        return self.chunk.topic

    @property
    def partition(self):
        """Return the partition, or None until it has been chosen."""
        cdef int32_t partition = outcome_of(self.chunk, self.row).partition
        return None if partition < 0 else partition

    @property
    def offset(self):
        """Return the offset in the partition; None until delivered, -1 if the broker gave none."""
        cdef Outcome outcome = outcome_of(self.chunk, self.row)
        if outcome.flags & (SETTLED | FAILED) != SETTLED:
            return None
        return outcome.offset

    @property
    def timestamp(self):
        """Return the timestamp in milliseconds since the epoch.

        For a topic with LogAppendTime it is the broker's timestamp once the message is delivered.
        """
        return outcome_of(self.chunk, self.row).timestamp

    @property
    def key(self):
        """Return the serialized key, or None if there is none or it has been released.

        It is available until the message is reported. If the message failed, it stays available as
        long as the handle exists.
        """
        return payload_of(self, 0)

    @property
    def value(self):
        """Return the serialized value, available as long as :attr:`key`."""
        return payload_of(self, 1)

    @property
    def serialized_key_size(self):
        """Return the size of the serialized key in bytes, -1 if there is none."""
        return outcome_of(self.chunk, self.row).key_size

    @property
    def serialized_value_size(self):
        """Return the size of the serialized value in bytes, -1 if there is none."""
        return outcome_of(self.chunk, self.row).value_size

    def settled(self):
        """Return whether the message has its outcome."""
        return flags_of(self.chunk, self.row) & SETTLED != 0

    def possibly_persisted(self):
        """Return whether an attempt may have appended the message to the log."""
        return flags_of(self.chunk, self.row) & (POSSIBLY | CLAIMED) != 0

    def failure(self):
        """Return the error of a failed message, else None, and mark the outcome as observed."""
        if observe(self.chunk, self.row) & FAILED:
            return error_of(self.chunk, self.row)
        return None

    def peek_failure(self):
        """Return the same as :meth:`failure` without marking the outcome as observed."""
        if flags_of(self.chunk, self.row) & FAILED:
            return error_of(self.chunk, self.row)
        return None

    def watch(self, lock):
        """Have *lock* released when the message is settled. Return False if it is already."""
        return add_waiter(self.chunk, self.row, lock)

    def unwatch(self, lock):
        """Cancel :meth:`watch`."""
        drop_waiter(self.chunk, self.row, lock)

    def when_settled(self, function):
        """Have ``function(handle)`` called in the Reports thread when the message is settled.

        Returns False, without calling it, if the message is settled already.
        """
        return add_row_callback(self.chunk, self.row, function)

    # -- methods of concurrent.futures.Future ------------------------------------------------

    def result(self, timeout=None):
        """Wait for the outcome and return the topic, partition and offset of the message.

        Args:
            timeout (float): seconds. None waits for the outcome, which arrives by the message's
                deadline. 0 does not wait.

        Returns:
            RecordMetadata: of the delivered message.

        Raises:
            DeliveryError: the message failed; the subclass says why.
            OutcomeTimeoutError: there was no outcome within *timeout*; the message is still
                pending. It is a TimeoutError and a KafkaTimeoutError.
            CallbackThreadError: the message is pending, and the caller is a callback or a
                partitioner, which would deadlock waiting for its own thread.
            ForkedProducerError: the message was pending when this process was forked; only the
                parent receives the outcome.
        """
        return _delivery_functions.result(self, timeout, send_or_wait(self, timeout))

    def exception(self, timeout=None):
        """Wait for the outcome and return the message's error, or None if it was delivered.

        Args:
            timeout (float): as for :meth:`result`.

        Returns:
            DeliveryError: the error that :meth:`result` would raise, or None.

        Raises:
            OutcomeTimeoutError, CallbackThreadError, ForkedProducerError: as for :meth:`result`.
        """
        return _delivery_functions.exception(self, timeout, send_or_wait(self, timeout))

    def done(self):
        """Return whether the message has its outcome."""
        return self.settled()

    def add_done_callback(self, function):
        """Have ``function(delivery)`` called once there is an outcome.

        It runs in the Reports thread, or at once in this thread if the outcome is already there.
        """
        _delivery_functions.add_done_callback(self, function)

    def __await__(self):
        return _delivery_functions.wait_in_event_loop(self)

    # -- methods of kafka-python's FutureRecordMetadata ------------------------------------------

    def get(self, timeout=None):
        """Return :meth:`result`, under its name in kafka-python.

        In kafka-python it raises ``KafkaTimeoutError``. Here that is the base class of
        ``OutcomeTimeoutError`` (there is no outcome yet) and of ``DeliveryTimeoutError`` (the
        message has failed at its deadline).
        """
        return _delivery_functions.result(self, timeout, send_or_wait(self, timeout))

    def add_callback(self, function, *args, **kwargs):
        """Have ``function(*args, record_metadata, **kwargs)`` called on delivery; return self."""
        return _delivery_functions.add_callback(self, function, args, kwargs)

    def add_errback(self, function, *args, **kwargs):
        """Have ``function(*args, error, **kwargs)`` called on failure; return self."""
        return _delivery_functions.add_errback(self, function, args, kwargs)

    def add_both(self, function, *args, **kwargs):
        """Add *function* as both a callback and an errback; return self."""
        _delivery_functions.add_callback(self, function, args, kwargs)
        return _delivery_functions.add_errback(self, function, args, kwargs)

    def succeeded(self):
        """Return whether the message is delivered."""
        return observe(self.chunk, self.row) & (SETTLED | FAILED) == SETTLED

    def failed(self):
        """Return whether the message has failed."""
        return observe(self.chunk, self.row) & FAILED != 0

    @property
    def is_done(self):
        """Return whether the message has its outcome (an attribute, as in kafka-python)."""
        return self.settled()

    @property
    def error(self):
        """Return the error of a failed message, else None."""
        return self.failure()

    @property
    def status(self):
        """Return the :class:`Status`: whether the message is, is not, or may be in the log."""
        return _delivery_functions.status(self)

    def __repr__(self):
        return _delivery_functions.describe(self)


cdef inline double send_or_wait(Delivery handle, timeout) except -1:
    """Send the message in this thread, if that is possible, and wait for its response.

    Returns how long that has taken (seconds).
    """
    cdef TopicSlot slot
    cdef double seconds = _NO_TIMEOUT
    cdef int64_t start
    cdef int too_large
    if not CALLERS_MAY_SEND:
        return 0
    slot = handle.chunk.origin
    if slot is None:
        return 0
    if PyFloat_CheckExact(timeout):
        seconds = timeout
    elif PyLong_CheckExact(timeout):
        seconds = PyLong_AsLongLongAndOverflow(timeout, &too_large)
        if too_large:
            seconds = _NO_TIMEOUT * too_large   # -1: too small
    elif timeout is not None:
        return 0
    start = kernel_clock(0)
    if not (seconds > 0 and send_as_caller(slot, handle.chunk, seconds)):
        return 0
    return (kernel_clock(0) - start) / <double>_NS


# Functions, not methods: a C method would cost each handle a pointer to a method table.
cdef uint8_t observe(Chunk chunk, uint32_t row) noexcept:
    """Return the row's flags. If it has its outcome, mark the outcome as observed."""
    cdef uint8_t flags = SETTLED
    enter_guard(&chunk.lock)
    if chunk.rows != NULL:
        flags = flags_at(chunk, row)[0]
        if flags & SETTLED:
            add_flags(flags_at(chunk, row), OBSERVED)
    leave_guard(&chunk.lock)
    return flags


cdef int forget_payload(Chunk chunk, uint32_t row) except -1:
    """Drop the payload that was kept for the handles of a failed row: the last one is gone."""
    cdef object payload                 # with the key: see Slice.keep()
    number = row
    enter_guard(&chunk.lock)
    try:
        payload = chunk.failed_payloads.pop(number, None)
    finally:
        leave_guard(&chunk.lock)
    return 0


cdef payload_of(Delivery handle, int which):
    """Return the key (0) or the value (1) of a message.

    Without the GIL, the payload of a failed message may be saved, and its memory be freed, between
    the first two steps. Saving comes first, so it is found in the third.
    """
    cdef Chunk chunk = handle.chunk
    cdef tuple saved = saved_payload(chunk, handle.row)
    if saved is None:
        found = chunk.payload_of(handle.row, which)
        if found is not None:
            return found
        saved = saved_payload(chunk, handle.row)
    return None if saved is None else saved[which]


cdef tuple saved_payload(Chunk chunk, uint32_t row):
    """Return what Slice.keep() has saved, or None."""
    cdef tuple saved = None
    number = row
    enter_guard(&chunk.lock)
    try:
        if chunk.failed_payloads is not None:
            saved = chunk.failed_payloads.get(number)
    finally:
        leave_guard(&chunk.lock)
    return saved
