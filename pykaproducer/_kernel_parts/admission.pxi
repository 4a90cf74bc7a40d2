# Admission: send(), up to the row in the open chunk of its topic.

cdef class Admission(OpenChunks):
    """The compiled base class of ``producer.Producer``: ``send()`` in one C call.

    A subclass calls ``_open()`` to set up, ``_admit()`` once its pipeline has started,
    ``_begin_to_close()`` when only some messages are still accepted, and ``_shut()`` when none are.
    It implements these hooks, which are not called for every message:

    - ``_start()``: called while not ``_ready``. Starts the pipeline on first use. Raises if
      messages, or this message, are not accepted any more.
    - ``_check_topic(topic)``: called for a new topic. Raises if the name is invalid.
    - ``_serialize(topic, key, value, headers)``: returns the key and the value as bytes. Called if
      ``_open()`` was called with *serializing*.
    - ``_intercept(...)``: called in place of ``send()`` while ``_intercepting``. Calls
      ``_accept()``, which does the rest of ``send()``.
    - ``_too_large(topic, size)``: raises.
    - ``_may_wait(size)``: called if *size* bytes are not available. Returns a held lock, or None if
      this thread must not wait. Raises if there can never be enough space.
    - ``_wait_for_space(turn)``: returns when *turn* is granted or messages are not accepted any
      more. Raises after the maximum waiting time.
    - ``_buffer_is_full(size, account)``: raises. Called in a thread that must not wait.
    - ``_is_too_late()``: raises. Called for a message whose transaction has ended.
    """

    cdef object announce                # announce(slot or list of them): topics have open chunks
    cdef Py_ssize_t max_request_size
    cdef int64_t n_accepted             # messages since the setup
    cdef int64_t n_bytes                # of their keys, values and headers
    cdef int is_ready                   # started, and accepting messages
    cdef int64_t short_timeout          # a message with less is announced in any case (ns)
    cdef int is_closing                 # accepting those for which _start() does not raise
    cdef int64_t waited_at              # when a thread last had to wait for the guard (ns)
    cdef bint shut                      # accepting none any more; final
    cdef int64_t transaction            # ordinal of the one that is, or was, open; 0: none
    cdef bint serializing
    cdef public bint _intercepting      # send() calls _intercept()

    @property
    def accepted(self):
        """Return the number of messages accepted since the setup."""
        return load_long(&self.n_accepted)

    @property
    def accepted_bytes(self):
        """Return the bytes of the keys, values and headers of these messages."""
        return load_long(&self.n_bytes)

    @property
    def _ready(self):
        """Return whether messages are accepted without a call of ``_start()``."""
        return bool(load_int(&self.is_ready))

    @property
    def _transaction(self):
        """Return the ordinal of the transaction that is, or was, open; 0: none."""
        return load_long(&self.transaction)

    @property
    def _closing(self):
        """Return whether only messages for which ``_start()`` does not raise are accepted."""
        return bool(load_int(&self.is_closing))

    def _open(self, Budget budget not None, announce, owner, *, double delivery_timeout,
              Py_ssize_t max_request_size, bint serializing, bint unconfirmed, fake_clock=None):
        """Set up without any messages: at construction, and again in a forked child.

        *announce*: called as ``announce(slot)`` when a topic has an open chunk to take, or with a
        list of slots. It returns False if the next message must announce it again. *owner*: a
        reference for each handle, as ``chunk.owner``. *delivery_timeout*: seconds.
        *max_request_size*: bytes. *serializing*: call ``_serialize()``. *unconfirmed*: acks=0.
        *fake_clock*: a clock object to use instead of the system clock, for tests. Raises
        ValueError for a *delivery_timeout* that is out of range.
        """
        if not 0 <= delivery_timeout < 1e9:     # a deadline must fit 64 bits of nanoseconds
            raise ValueError(f"delivery_timeout must be between 0 and 1e9 seconds, "
                             f"not {delivery_timeout}")
        # In the child of a fork there is no other thread, and the parent's cannot leave the guard.
        init_guard(&self.guard)
        self.opening += 1
        self.budget = budget
        self.let_go_of_chunks()
        self.slots = {}
        self.announce = announce
        self.owner = owner
        self.unconfirmed = unconfirmed
        self.timeout = <int64_t>(delivery_timeout * _NS)
        self.short_timeout = min(self.timeout, _NS)
        self.max_request_size = max_request_size
        self.serializing = serializing
        self.fake_clock = fake_clock
        self.serial = 0
        self.n_accepted = self.n_bytes = 0
        self.is_ready = self.is_closing = self.shut = False

    cdef let_go_of_chunks(self):
        """Break the cycles of slots and open chunks, which no garbage collector finds."""
        cdef Chunk chunk
        for slot in (self.slots or {}).values():
            # In a forked child: the socket and the request in flight are the parent's.
            (<TopicSlot>slot).route = (<TopicSlot>slot).last_path = (<TopicSlot>slot).paths = None
            (<TopicSlot>slot).rests_for = None
            chunk = (<TopicSlot>slot).chunk
            if chunk is not None:
                chunk.origin = None

    def _admit(self, int64_t transaction=0):
        """Accept messages, unless ``_begin_to_close()`` or ``_shut()`` was called before.

        *transaction*: the ordinal of that to which they belong. A message whose ``send()`` began in
        another one is not accepted: ``_is_too_late()`` is called, which raises.
        """
        enter_guard(&self.guard)
        try:
            store_long(&self.transaction, transaction)
            store_int(&self.is_ready, not (self.is_closing or self.shut))
        finally:
            leave_guard(&self.guard)

    def _pause(self):
        """Call ``_start()`` for each message until ``_admit()``. On return none is appended."""
        enter_guard(&self.guard)
        store_int(&self.is_ready, False)
        leave_guard(&self.guard)

    def _begin_to_close(self):
        """Call ``_start()`` for each message from now on. Has no effect after ``_shut()``."""
        enter_guard(&self.guard)
        try:
            store_int(&self.is_ready, False)
            store_int(&self.is_closing, not self.shut)
        finally:
            leave_guard(&self.guard)

    def _shut(self):
        """Accept no more messages, permanently. On return the last one has been appended."""
        enter_guard(&self.guard)
        try:
            store_int(&self.is_ready, False)
            store_int(&self.is_closing, False)
            self.shut = True
        finally:
            leave_guard(&self.guard)

    def send(self, topic, value=None, key=None, headers=None, partition=None, timestamp_ms=None,
             *, on_delivery=None, delivery_timeout_ms=None):
        """Accept one message for sending and return its :class:`Delivery` immediately.

        Never waits for the network. If ``buffer_memory`` has no space for the message, waits up to
        ``max_block_ms`` for it (KIP-286).

        Args:
            topic (str): topic name.
            value: bytes-like, or None (a tombstone). Any object if ``value_serializer`` is set.
            key: bytes-like, or None; decides the partition. Any object if ``key_serializer`` is
                set.
            headers: list of ``(str, bytes or None)``, or None.
            partition (int): partition to send to. None: the partitioner decides.
            timestamp_ms (int): milliseconds since the epoch. None: the current time.
            on_delivery: called once as ``on_delivery(error, delivery)`` in the Reports thread. The
                error is None if the message was delivered.
            delivery_timeout_ms (int): milliseconds until this message is delivered or fails. None:
                the setting ``delivery_timeout_ms``.

        Returns:
            Delivery: the message's future and report.

        Raises:
            TypeError, ValueError: invalid argument (type, topic name, negative partition).
            MessageTooLargeError: larger than ``max_request_size`` or ``buffer_memory``.
            BufferFullError: no space within ``max_block_ms``; immediately in a callback.
            ProducerClosedError: after ``close()``.
            ProducerBrokenError: an internal error stopped the producer; the cause is chained.
            Exception: any exception of a serializer.

        If it raises, the message was not accepted. After an asynchronous exception such as
        ``KeyboardInterrupt`` it may have been accepted, and will then be sent.
        """
        cdef TopicSlot slot
        cdef Payload payload
        cdef Terms terms
        cdef Delivery handle
        cdef bytes encoded
        cdef Intercepted past = None
        cdef bint late = False
        terms.transaction = load_long(&self.transaction)    # before user code runs
        if self._intercepting:
            if type(on_delivery) is not Intercepted:
                return self._intercept(topic, value, key, headers, partition, timestamp_ms,
                                       on_delivery, delivery_timeout_ms)
            past = <Intercepted>on_delivery
            on_delivery, terms.transaction = past.on_delivery, past.transaction
        if not load_int(&self.is_ready):
            self._start()
        if not PyUnicode_CheckExact(topic):
            self._check_topic(topic)
            topic = str.__str__(topic)      # the text of a StrEnum member
        slot = self.found_slot(topic)
        if slot is None:
            slot = self.new_slot(topic)
        if self.serializing:
            key, value = self._serialize(topic, key, value, headers)
        self.check_terms(&terms, partition, timestamp_ms, delivery_timeout_ms, on_delivery)
        payload.open = 0
        payload.large = NULL
        try:
            payload.total = 0
            take_field(&payload, 0, key, "key")
            take_field(&payload, 1, value, "value")
            encoded = take_headers(&payload, headers)
            if payload.total + _HEADER + _RECORD > self.max_request_size:
                self._too_large(topic, payload.total + _HEADER + _RECORD)
            handle = self.admit(slot, &payload, &terms, on_delivery)
            if load_long(&slot.opening) != self.opening:
                slot = self.entered(slot)   # the slot that it was appended to
            if past is not None:
                # No Python code has run since the append, so no interrupt occurs in between.
                past.accepted = True
                late = not watch_row(handle.chunk, handle.row, past.watcher)
        finally:
            release_fields(&payload)
        if terms.timeout < self.short_timeout or not load_int(&slot.announced):
            self.send_or_announce(slot, handle.chunk, terms.timeout)
        if late:
            past.watcher(handle)
        if load_long(&self.n_accepted) & (_ROWS_A_LOOK - 1) == 0:
            look_around()
        return handle

    def _accept(self, record, Intercepted past, delivery_timeout_ms):
        """Send *record*, the message as modified by ``_intercept()``."""
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
                                "await the delivery instead, or pass a plain function")
        return 0

    @cython.final
    cdef Delivery admit(self, TopicSlot slot, Payload *payload, Terms *terms, on_delivery):
        """Reserve the message's bytes, waiting for them if necessary, and append it.

        A serializer, a signal handler or a finalizer may fork during ``send()``. In the child:

        1. ``_open()`` has replaced the slot table and the budget, and incremented ``opening``;
        2. ``send()`` still has the slot that it found in the parent's table, which may contain the
           parent's open chunk;
        3. so the slot is looked up again if its ``opening`` differs, and ``append`` compares them
           once more inside the guard.
        """
        cdef Py_ssize_t cost = payload.total + _ROW_COST
        cdef int64_t now = self.now()
        cdef Delivery handle = None
        cdef Budget budget
        while True:
            budget = self.budget
            if not budget.take(cost, slot.account):
                budget = self.wait_for_room(cost, slot.account, terms.transaction)
            # No Python code runs from here to the append, so on a KeyboardInterrupt the message is
            # either not accepted, or accepted and will be sent.
            try:
                if load_long(&slot.opening) != self.opening:
                    slot = self.entered(slot)
                handle = self.append(slot, payload, terms, now, on_delivery)
            finally:
                if handle is None:      # otherwise the chunk releases the bytes later
                    budget.give_back(cost)
                    budget.wake()
            if handle is not None:
                return handle
            self.start_again(terms.transaction)

    @cython.final
    cdef start_again(self, int64_t transaction):
        """Raise unless a message of *transaction* may be accepted after all.

        The producer was closed, broken or forked in the meantime, or the transaction has ended.
        """
        self._start()
        if load_long(&self.transaction) != transaction:
            self._is_too_late()

    @cython.final
    cdef Budget wait_for_room(self, int64_t cost, Account account, int64_t transaction):
        """Reserve *cost* bytes after the threads that already wait. Return their budget."""
        cdef Budget budget
        cdef Turn turn
        cdef bint taken = False
        while True:
            lock = self._may_wait(cost)
            budget = self.budget
            if lock is None:
                if not budget.take_past(cost, account):
                    self._buffer_is_full(cost, account)
                return budget
            turn = budget.queue(cost, account, lock)
            turn.transaction = transaction
            try:
                while not load_int(&turn.is_granted) and budget is self.budget:
                    self._wait_for_space(turn)
                    if not load_int(&self.is_ready) \
                            or load_long(&self.transaction) != transaction:
                        self.start_again(transaction)
                # No Python code runs from here on.
                taken = load_int(&turn.is_granted) and budget is self.budget
            finally:
                budget.leave(turn, taken)
            if taken:
                return budget

    @cython.final
    cdef send_or_announce(self, TopicSlot slot, Chunk chunk, int64_t timeout):
        """Send the messages of *slot*, to which one was appended in *chunk*, or announce them."""
        try:
            if timeout >= self.short_timeout and drive_if_idle(slot, chunk):
                return
        except (MemoryError, SystemError):
            pass                        # the message is accepted: it is left to the stages
        except BaseException:
            # A KeyboardInterrupt in the code of a codec: the message is accepted.
            self.announce_open(slot, chunk)
            raise
        self.announce_open(slot, chunk)

    @cython.final
    cdef announce_open(self, TopicSlot slot, Chunk chunk):
        """Announce *slot* first, and then mark it as announced.

        A send() in between, by a signal handler or another thread, must not assume that the
        dispatcher already knows. The slot stays unmarked if the announcement fails or the
        dispatcher has no thread yet. Then the next send(), or flush(), announces it.
        """
        cdef bint announced = False
        try:
            self.announce_surely(slot, &announced)
        finally:
            self.mark_announced(announced, slot, chunk)

    @cython.final
    cdef announce_surely(self, slots, bint *announced):
        """Announce *slots*: one, or a list. Store in *announced* whether the dispatcher knows.

        The messages are accepted. So this waits for memory, and announces them again after a
        KeyboardInterrupt.
        """
        while True:
            try:
                announced[0] = self.announce(slots) is not False
                return
            except (MemoryError, SystemError):      # the latter: see _util/memory.py
                pause_for_memory()
            except BaseException:
                announced[0] = self.announce(slots) is not False
                raise

    @cython.final
    cdef mark_announced(self, bint announced, TopicSlot slot, Chunk chunk):
        enter_guard(&self.guard)
        try:
            # Otherwise the chunk has been taken, and the open one has not been announced.
            if announced and slot.has(chunk):
                store_int(&slot.announced, True)
        finally:
            leave_guard(&self.guard)

    @cython.final
    cdef Delivery append(self, TopicSlot slot, Payload *payload, Terms *terms, int64_t now,
                         on_delivery):
        """Append one message to the topic's open chunk.

        Return None if closed or forked, or if its transaction has ended.
        """
        cdef Delivery handle = Delivery.__new__(Delivery)
        cdef Chunk spare = None
        cdef Chunk chunk
        cdef bint done = False, full
        while not done:
            enter_crowded_guard(&self.guard, &self.waited_at)
            try:
                if not (self.is_ready or self.is_closing) or slot.opening != self.opening \
                        or self.transaction != terms.transaction:
                    return None
                full = not has_room(slot.chunk, payload)
                if full and spare is not None:
                    if slot.chunk is not None:
                        slot.add_full(slot.chunk)
                    slot.open_chunk(spare)
                    full = False
                if not full:
                    chunk = slot.chunk
                    done = append_for(chunk, payload, terms, now, <PyObject *>on_delivery, handle)
                    if not done:
                        raise MemoryError("out of memory for a message; buffer_memory is larger "
                                          "than the memory that the process can allocate")
                    increase(&self.n_accepted, 1)
                    increase(&self.n_bytes, payload.total)
                    slot.account.add(payload.total + _ROW_COST)
            finally:
                leave_guard(&self.guard)
            if full:
                spare = self.new_chunk(slot)    # and look again: it may have been taken by then
        return handle
