# Admission of blocks: see block_rows.pxi for the steps.

#: A block larger than buffer_memory is accepted in pieces of at most this fraction (1/8) of it.
cdef int64_t _PIECES = 8


cdef class BlockAdmission(Admission):
    """Admission of many messages at once: ``send_many()`` and ``send_arrow()``."""

    def _send_block(self, SentBlock block not None, topic, list batches not None,
                    delivery_timeout_ms, watch, refusals):
        """Accept the rows of *batches* (Columns) as *block*.

        *topic*: None if each row names its topic. *delivery_timeout_ms*: as for :meth:`send`.
        *watch*: called in the Reports thread with the handle of the last row once that is settled,
        or None. *refusals*: exceptions that are recorded as ``block.refusal`` if a part of the
        block has been accepted already; the rest of the block then fails. The caller has set
        ``block.transaction``. Raises the same errors as :meth:`send`, naming the row. In that case
        nothing is accepted.
        """
        cdef Terms terms
        cdef Columns columns
        cdef int64_t total = 0, size, bad
        # No row may be larger than a request, nor than the whole buffer.
        cdef int64_t most = min(self.max_request_size,
                                self.budget.limit - _ROW_COST + _HEADER + _RECORD)
        cdef list parts = [], whole = []
        if not load_int(&self.is_ready):
            self._start()
        self.check_terms(&terms, None, None, delivery_timeout_ms, None)
        for columns in batches:
            if columns is None:
                raise TypeError("a batch must be Columns, not None")
            with nogil:
                bad = measure(columns, most, &size)
            if bad >= 0:
                self.refuse_row(topic, columns, bad, block.count)
            columns.size = size
            if columns.count:
                parts.append((columns, self.routes_of(topic, columns, block.count), block.count))
            total += size + columns.count * _ROW_COST
            block.count += columns.count
        if not parts:
            return
        if total <= self.budget.limit:
            for part in parts:
                whole.append((*part, 0, (<Columns>part[0]).count))
            self.admit_piece(block, whole, total, &terms, watch)
            return
        try:
            for part in parts:
                self.admit_pieces(block, part, &terms, watch)
        except refusals as error:
            if not block.accepted:
                raise
            # The block keeps the error without the frames of this call.
            block.refusal = _delivery_functions.without_frames(error)

    cdef admit_pieces(self, SentBlock block, tuple part, Terms *terms, watch):
        cdef Columns columns = part[0]
        cdef int64_t start = 0, end, cost
        cdef bint last
        while start < columns.count:
            end = piece_end(columns, start, self.budget.limit // _PIECES, &cost)
            if end == start:
                raise changed_columns()
            last = block.accepted + end - start == block.count
            self.admit_piece(block, [part + (start, end)], cost, terms, watch if last else None)
            start = end

    cdef admit_piece(self, SentBlock block, list parts, int64_t cost, Terms *terms, watch):
        """Reserve *cost* bytes, waiting for them if necessary, and accept *parts*.

        After a fork during this call (see ``admit``) the child starts over, because the filled
        chunks would count against the parent's budget.
        """
        cdef list segments, slots
        cdef Chunk chunk
        cdef Budget budget
        cdef Account account
        cdef int64_t left
        cdef bint done = False
        while True:
            budget = self.budget
            account = self.account_of(budget, parts, cost)
            if not budget.take(cost, account):
                budget = self.wait_for_room(cost, account, block.transaction)
            segments = []
            left = cost
            try:
                for columns, routes, base, start, end in parts:
                    self.fill_part(segments, columns, routes, base, start, end, terms,
                                   &left)
                if left:
                    raise changed_columns()
                if watch is not None:
                    chunk = (<Segment>segments[len(segments) - 1]).chunk
                    add_row_callback(chunk, chunk.count - 1, watch)
                slots = self.slots_of(segments)
                done = self.publish(block, segments, slots, budget)
            finally:
                if not done:
                    budget.give_back(cost)
                    budget.wake()
            if done:
                break
            self.start_again(block.transaction)
        self.announce_block(slots, segments, terms.timeout < self.short_timeout)

    cdef announce_block(self, list slots, list segments, bint always):
        """Announce the *slots* of *segments*, as announce_open() does, all in one call.

        So a KeyboardInterrupt cannot leave some of them unannounced. *always*: also those that
        have been announced before. Without memory for a list of the others, all are announced.
        """
        cdef bint announced = False
        cdef Py_ssize_t place
        cdef list waiting = slots
        cdef TopicSlot slot
        if not always:
            try:
                waiting = []
                for slot in slots:
                    if not load_int(&slot.announced):
                        waiting.append(slot)
            except MemoryError:
                waiting = slots
        if not waiting:
            return
        try:
            self.announce_surely(waiting[0] if len(waiting) == 1 else waiting, &announced)
        finally:
            for place in range(len(slots)):
                self.mark_announced(announced, <TopicSlot>slots[place],
                                    (<Segment>segments[place]).chunk)

    cdef Account account_of(self, Budget budget, list parts, int64_t cost):
        """Return the account of a topic of *parts* that is held back, else that of any."""
        cdef TopicSlot slot
        cdef Account account = None
        for _, routes, *_ in parts:
            for found in (<Routes>routes).slots:
                # A piece before may have entered another slot of a new topic: see slots_of().
                slot = self.found_slot((<TopicSlot>found).topic)
                if slot is not None:
                    account = slot.account
                    if budget.is_held_back(account, cost):
                        return account
        return account

    cdef fill_part(self, list segments, Columns columns, Routes routes, int64_t base,
                   int64_t start, int64_t end, Terms *terms, int64_t *left):
        """Put rows into new chunks, which are added to *segments*. *left*: see fill()."""
        cdef int64_t now = self.now()
        cdef int64_t i = start
        cdef int32_t route
        cdef Segment segment
        cdef tuple objects = objects_to_refer_to(columns)
        routes.begin()
        while i < end:
            route = routes.route[i] if routes.route != NULL else 0
            segment = Segment.__new__(Segment)
            segment.chunk = self.new_chunk(routes.slots[route])
            if objects is not None:
                refer_to(segment.chunk, objects)
            held_whole(segment.chunk, 1)
            segment.first = base + i
            segments.append(segment)
            routes.open_one(route, segment)
            with nogil:
                if routes.route == NULL:
                    segment.chunk.reserve(<uint32_t>min(end - i, <int64_t>_CHUNK_ROWS))
                i = fill(routes, columns, i, end, base, terms, now, left)
                want_gil()
            got_gil()
            if i == _CHANGED:
                raise changed_columns()
            if i < 0:
                raise no_memory_for_block()

    cdef list slots_of(self, list segments):
        """Return the slot of each segment, adding missing ones to the table.

        The chunk of a new topic was made for a slot that is not in the table. ``_is_at_rest()``
        would not see that it is in progress.
        """
        cdef list slots = []
        cdef TopicSlot slot
        cdef Segment segment
        for segment in segments:
            slot = TopicSlot.__new__(TopicSlot)
            slot.topic = segment.chunk.topic
            segment.chunk.origin = self.entered(slot)
            segment.chunk.account = segment.chunk.origin.account
            slots.append(segment.chunk.origin)
        return slots

    cdef bint publish(self, SentBlock block, list segments, list slots, Budget budget) except -1:
        """Append the chunks of *segments* to the waiting chunks of their topics.

        Returns false if messages are not accepted any more, if the transaction in which the block
        began has ended, or if the process was forked and the chunks count against the parent's
        budget. Appends none if it raises MemoryError.
        """
        cdef Segment segment
        cdef TopicSlot slot
        cdef Py_ssize_t appended = 0
        enter_guard(&self.guard)
        try:
            for slot in slots:
                if slot.opening != self.opening:
                    return False        # it was just removed: see _let_go()
            if not (self.is_ready or self.is_closing) or budget is not self.budget \
                    or self.transaction != block.transaction:
                return False
            try:
                block.segments += segments
                while appended < len(segments):
                    self.append_chunk(slots[appended], (<Segment>segments[appended]).chunk)
                    appended += 1
            except MemoryError:
                while appended:
                    appended -= 1
                    drop((<TopicSlot>slots[appended]).full,
                         (<Segment>segments[appended]).chunk)
                for segment in segments:
                    drop(block.segments, segment)
                raise
            for segment in segments:
                increase(&self.n_accepted, segment.chunk.count)
                increase(&self.n_bytes, segment.chunk.nbytes)
                segment.chunk.account.add(segment.chunk.nbytes + segment.chunk.count * _ROW_COST)
                block.accepted += segment.chunk.count
        finally:
            leave_guard(&self.guard)
        return True

    cdef append_chunk(self, TopicSlot slot, Chunk chunk):
        """Append a chunk to those that wait in *slot*. The caller holds the guard."""
        if slot.chunk is not None:
            slot.add_full(slot.chunk)
            slot.open_chunk(None)
        slot.add_full(chunk)

    cdef routes_of(self, topic, Columns columns, int64_t base):
        """Return the slots of the rows' topics, and the slot of each row."""
        cdef Routes routes = Routes.__new__(Routes)
        cdef int64_t i = 0, size
        cdef const uint8_t *data
        if topic is not None:
            routes.slots.append(self.slot_of(topic))
            return routes
        if columns.topic.kind == ABSENT:
            raise ValueError("no topic: pass one to the call, or add a column 'topic'")
        routes.by_row(columns.count)
        while True:
            with nogil:
                i = find_routes(routes, columns, i)
            if i == columns.count:
                return routes
            data = cell(&columns.topic, i, &size)
            if size < 0:
                raise row_error(base + i, "column 'topic' is null" if size == _NULL
                                else broken("topic"))
            name = PyBytes_FromStringAndSize(<const char *>data, size)
            try:
                routes.add(self.slot_of(name.decode()), name)
            except ValueError as error:
                raise row_error(base + i, str(error)) from None

    cdef TopicSlot slot_of(self, topic):
        if not PyUnicode_CheckExact(topic):
            self._check_topic(topic)
            topic = str.__str__(topic)
        slot = self.slots.get(topic)
        return slot if slot is not None else self.new_slot(topic)

    cdef refuse_row(self, topic, Columns columns, int64_t row, int64_t base):
        cdef Payload payload
        cdef int64_t size = look_at_row(columns, row, &payload)
        if size == _NULL:
            raise row_error(base + row, "a header has no name")
        if size < 0:
            raise row_error(base + row, broken(broken_column(columns, row)))
        self._too_large(topic, size + _HEADER + _RECORD, base + row)


cdef str broken_column(Columns columns, int64_t row):
    """Return the name of the column whose cell in *row* is outside its data."""
    cdef int64_t size
    cell(&columns.key, row, &size)
    if size == _BROKEN:
        return "key"
    cell(&columns.value, row, &size)
    return "value" if size == _BROKEN else "headers"


cdef str broken(str name):
    return f"column {name!r} is not valid Arrow data: an offset or an index is out of range"


cdef changed_columns():
    return ValueError("the memory of a column was modified during the call; do not modify the "
                      "arrays until send_many() or send_arrow() has returned")


cdef no_memory_for_block():
    return MemoryError("out of memory for a block; buffer_memory is larger than the memory that "
                       "the process can allocate")
