# Admission: send(), up to the row in the open chunk of its topic.

@cython.final
cdef class Intercepted:
    """In place of a callback: the message has been through ``_intercept()``.

    *on_delivery*: the user's own. *watcher*: called as ``watcher(handle)`` with the outcome.
    ``accepted``: from then on it will be called, whatever interrupts ``send()``.
    """

    cdef object on_delivery, watcher
    cdef readonly bint accepted

    def __init__(self, on_delivery, watcher):
        self.on_delivery = on_delivery
        self.watcher = watcher


cdef void look_around() noexcept:
    """Now and then in a loop over send(): have memory ready, and let a stage run that wants to."""
    if pool_is_low():
        with nogil:
            fill_pool()
    cdef int i
    for i in range(_STAGES_A_LOOK):
        if not gil_is_wanted():
            break
        let_stages_run()


cdef class Admission(OpenChunks):
    """The front door: ``send()`` in one compiled call. ``producer.Producer`` derives from it.

    A subclass calls ``_open()``, ``_admit()`` once what is behind the door is there,
    ``_begin_to_close()`` when it takes messages of its choice only, ``_shut()`` when it takes none
    any more, and gives what is not per message:

    - ``_start()``: called while not ``_ready``; starts what is behind the door at the first use,
      raises when no more messages are taken, or not this one;
    - ``_check_topic(topic)``: called for a topic that is new here; raises if it cannot be one;
    - ``_serialize(topic, key, value, headers)``: the key and the value as bytes; called if
      ``_open()`` was told so;
    - ``_not_bytes(name, data)``: may raise when that has returned something else;
    - ``_intercept(...)``: called in place of ``send()`` while ``_intercepting``; calls
      ``_accept()``, which is what it would have done;
    - ``_too_large(topic, size)``: raises;
    - ``_may_wait(size)``: called without the room for *size* bytes; returns a lock, which is
      held, or None if this thread must not wait; raises if there can never be room;
    - ``_wait_for_space(turn)``: returns when *turn* is granted, or no messages are taken; raises
      when it has waited long enough;
    - ``_buffer_is_full(size)``: raises, in a thread that must not wait.
    """

    cdef object announce                # announce(slot): a topic has an open chunk
    cdef Py_ssize_t max_request_size
    cdef readonly int64_t accepted      # messages, ever
    cdef readonly int64_t accepted_bytes    # of keys, values and headers
    cdef readonly bint _ready           # started, and taking messages
    cdef readonly bint _closing         # taking those that _start() lets pass
    cdef bint shut                      # taking none any more, whoever says that it is ready
    cdef bint serializing
    cdef public bint _intercepting      # _intercept() is asked

    def _open(self, Budget budget not None, announce, home, *, double delivery_timeout,
              Py_ssize_t max_request_size, bint serializing, bint unconfirmed, fake_clock=None):
        """Set up, empty: at construction, and again in a forked child.

        *announce*: called as ``announce(slot)`` when a topic has an open chunk that is to be
        taken; returns False if the next message must announce it again. *delivery_timeout* in
        seconds. *fake_clock*: a clock object to ask instead of the machine's, for tests.
        """
        if not 0 <= delivery_timeout < 1e9:     # a deadline must fit 64 bits of nanoseconds
            raise ValueError(f"delivery_timeout must be between 0 and 1e9 seconds, "
                             f"not {delivery_timeout}")
        self.opening += 1
        self.budget = budget
        self.slots = {}
        self.announce = announce
        self.home = home
        self.unconfirmed = unconfirmed
        self.timeout = <int64_t>(delivery_timeout * _NS)
        self.max_request_size = max_request_size
        self.serializing = serializing
        self.fake_clock = fake_clock
        self.serial = 0
        self.accepted = self.accepted_bytes = 0
        self._ready = self._closing = self.shut = False

    def _admit(self):
        """Take messages, unless ``_begin_to_close()`` or ``_shut()`` has come before."""
        enter_guard(&self.guard)
        try:
            self._ready = not (self._closing or self.shut)
        finally:
            leave_guard(&self.guard)

    def _begin_to_close(self):
        """From now on ask ``_start()`` about each message; nothing changes after ``_shut()``."""
        enter_guard(&self.guard)
        try:
            self._ready = False
            self._closing = not self.shut
        finally:
            leave_guard(&self.guard)

    def _shut(self):
        """Take no more messages, for good: when this returns the last one has been appended."""
        enter_guard(&self.guard)
        try:
            self._ready = self._closing = False
            self.shut = True
        finally:
            leave_guard(&self.guard)

    def send(self, topic, value=None, key=None, headers=None, partition=None, timestamp_ms=None,
             *, on_delivery=None, delivery_timeout_ms=None):
        """Accept one message and return its :class:`Delivery` at once.

        Never waits for the network. With less than the message's bytes left of ``buffer_memory``
        it waits for space up to ``max_block_ms`` (KIP-286).

        Args:
            topic (str): topic name.
            value: bytes-like, or None (a tombstone); anything with ``value_serializer`` set.
            key: bytes-like, or None; decides the partition. Anything with ``key_serializer`` set.
            headers: list of ``(str, bytes or None)``, or None.
            partition (int): send it there; None: the partitioner decides.
            timestamp_ms (int): milliseconds since the epoch; None: now.
            on_delivery: ``on_delivery(error, delivery)``, called once in the Reports thread; error
                is None if the message is in the log.
            delivery_timeout_ms (int): milliseconds for this message by which it has its outcome;
                None: the setting ``delivery_timeout_ms``.

        Returns:
            Delivery: the message's future and report.

        Raises:
            TypeError, ValueError: it can never be right (type, topic name, negative partition).
            MessageTooLargeError: larger than ``max_request_size`` or ``buffer_memory``.
            BufferFullError: no space for ``max_block_ms``; in a callback, at once.
            ProducerClosedError: after ``close()``.
            ProducerBrokenError: a stage died of a bug; the cause is chained.
            Exception: what a serializer raises.

        Nothing is accepted then. Only what strikes from outside, as ``KeyboardInterrupt`` does,
        may leave the message accepted and on its way.
        """
        cdef TopicSlot slot
        cdef PyObject *found
        cdef Payload payload
        cdef Terms terms
        cdef Delivery handle
        cdef bytes encoded
        cdef Intercepted past = None
        cdef bint late = False
        if self._intercepting:
            if type(on_delivery) is not Intercepted:
                return self._intercept(topic, value, key, headers, partition, timestamp_ms,
                                       on_delivery, delivery_timeout_ms)
            past = <Intercepted>on_delivery
            on_delivery = past.on_delivery
        if not self._ready:
            self._start()
        if not PyUnicode_CheckExact(topic):
            self._check_topic(topic)
            topic = str.__str__(topic)      # of a member of a StrEnum: its text
        found = PyDict_GetItemWithError(self.slots, topic)
        slot = <TopicSlot>found if found != NULL else self.new_slot(topic)
        if self.serializing:
            key, value = self._serialize(topic, key, value, headers)
            if not can_be_sent(key):
                self._not_bytes("key", key)
            if not can_be_sent(value):
                self._not_bytes("value", value)
        self.check_terms(&terms, partition, timestamp_ms, delivery_timeout_ms, on_delivery)
        payload.open = 0
        try:
            payload.total = 0
            take_field(&payload, 0, key, "key")
            take_field(&payload, 1, value, "value")
            encoded = take_headers(&payload, headers)
            if payload.total + _HEADER + _RECORD > self.max_request_size:
                self._too_large(topic, payload.total + _HEADER + _RECORD)
            handle = self.admit(slot, &payload, &terms, on_delivery)
            if slot.opening != self.opening:
                slot = self.entered(slot)   # the one that it was appended to
            if past is not None:
                # No Python code has run since the append: no interrupt comes in between.
                late = not add_extra(handle.chunk, handle.row, past.watcher)
                past.accepted = True
        finally:
            release_fields(&payload)
        if not slot.announced:
            self.announce_open(slot, handle.chunk)
        if late:
            past.watcher(handle)
        if self.accepted & (_ROWS_A_LOOK - 1) == 0:
            look_around()
        return handle

    def _accept(self, record, Intercepted past, delivery_timeout_ms):
        """:meth:`send` of what ``_intercept()`` has made of a message."""
        return Admission.send(self, record.topic, record.value, record.key, record.headers,
                              record.partition, record.timestamp_ms, on_delivery=past,
                              delivery_timeout_ms=delivery_timeout_ms)

    @cython.final
    cdef int check_terms(self, Terms *terms, partition, timestamp_ms, delivery_timeout_ms,
                         on_delivery) except -1:
        terms.partition = -1
        if partition is not None:
            terms.partition = <int32_t>checked_int(partition, "partition", 0, 0x7fffffff)
        terms.timeout = self.timeout
        if delivery_timeout_ms is not None:
            terms.timeout = 1000000 * checked_int(delivery_timeout_ms, "delivery_timeout_ms", 1,
                                                  0x7fffffff)
        terms.timestamp = -1
        if timestamp_ms is not None:
            terms.timestamp = checked_int(timestamp_ms, "timestamp_ms", 0, 1 << 62)
        if on_delivery is not None:
            if not callable(on_delivery):
                raise TypeError(f"on_delivery must be callable, not {type(on_delivery).__name__}")
            if is_coroutine_function(on_delivery):
                raise TypeError("on_delivery is an async function, which no event loop would run; "
                                "await the delivery instead, or give a plain function")
        return 0

    @cython.final
    cdef Delivery admit(self, TopicSlot slot, Payload *payload, Terms *terms, on_delivery):
        """Reserve the message's bytes, waiting for them if necessary, and append it.

        A serializer, a signal handler or a finalizer may fork below ``send()``. In the child:

        1. ``_open()`` has replaced the table of slots and the budget, and counted that;
        2. ``send()`` still has the slot that it found in the parent's table, where the parent's
           chunk may stand open;
        3. so the slot is looked up anew if its count is another, and ``append`` compares them
           once more inside the guard.
        """
        cdef Py_ssize_t cost = payload.total + _ROW_COST
        cdef int64_t now = self.now()
        cdef Delivery handle = None
        cdef Budget budget
        while True:
            budget = self.budget
            if not budget.take(cost):
                budget = self.wait_for_room(cost)
            # From here to the append no Python code runs: a KeyboardInterrupt finds the message
            # either not accepted, or accepted and on its way.
            try:
                if slot.opening != self.opening:
                    slot = self.entered(slot)
                handle = self.append(slot, payload, terms, now, on_delivery)
            finally:
                if handle is None:      # else it is from now on the chunk that gives it back
                    budget.give_back(cost)
                    budget.wake()
            if handle is not None:
                return handle
            self._start()               # closed, broken or forked in between

    @cython.final
    cdef Budget wait_for_room(self, int64_t cost):
        """Reserve *cost* bytes, after threads that wait already; return their budget."""
        cdef Budget budget
        cdef Turn turn
        cdef bint taken = False
        while True:
            lock = self._may_wait(cost)
            budget = self.budget
            if lock is None:
                if not budget.take_past(cost):
                    self._buffer_is_full(cost)
                return budget
            turn = budget.queue(cost, lock)
            try:
                while not turn.granted and budget is self.budget:
                    self._wait_for_space(turn)
                    if not self._ready:
                        self._start()   # closed, broken or forked while it waited
                # No Python code runs from here on.
                taken = turn.granted and budget is self.budget
            finally:
                budget.leave(turn, taken)
            if taken:
                return budget

    @cython.final
    cdef announce_open(self, TopicSlot slot, Chunk chunk):
        """Announce *slot*, and only then mark it as announced: a signal handler that sends in
        between, or another thread, relies on the mark.

        It stays unmarked if the announcement fails, or if the dispatcher has no thread yet: then
        the next send(), or flush(), announces it."""
        cdef bint announced = False
        try:
            announced = self.announce(slot) is not False
        except BaseException:
            # The message is accepted: after a KeyboardInterrupt the slot is announced once more.
            announced = self.announce(slot) is not False
            raise
        finally:
            enter_guard(&self.guard)
            try:
                # Else it has been taken, and what is open now has not been announced.
                if announced and (slot.chunk is chunk or chunk in slot.full):
                    slot.announced = True
            finally:
                leave_guard(&self.guard)

    @cython.final
    cdef Delivery append(self, TopicSlot slot, Payload *payload, Terms *terms, int64_t now,
                         on_delivery):
        """Append one message to the topic's open chunk; None if messages are not taken any more."""
        cdef Delivery handle = Delivery.__new__(Delivery)
        cdef Chunk spare = None
        cdef Chunk chunk
        cdef bint done
        while True:
            if spare is None and not has_room(slot.chunk, payload):
                spare = self.new_chunk(slot)
            enter_guard(&self.guard)
            try:
                if not (self._ready or self._closing) or slot.opening != self.opening:
                    return None
                if not has_room(slot.chunk, payload):
                    if spare is None:
                        continue        # taken, or filled, between our look and our lock
                    if slot.chunk is not None:
                        slot.full.append(slot.chunk)
                    slot.chunk = spare
                chunk = slot.chunk
                done = append_row(chunk, payload, terms, now, <PyObject *>on_delivery)
                if done:
                    handle.chunk = chunk
                    handle.row = chunk.count - 1
                    hold(&chunk.held, &chunk.rows[handle.row].holders, 1)
                    self.accepted += 1
                    self.accepted_bytes += payload.total
            finally:
                leave_guard(&self.guard)
            if done:
                return handle
            raise MemoryError("no memory for a message, although buffer_memory allows it")
