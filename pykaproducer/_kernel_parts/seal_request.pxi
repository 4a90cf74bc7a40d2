# Sealing a request: one call for all its ordinary batches.

#: Bytes that a request has for each batch in addition to the batch: its partition and its length.
BATCH_OVERHEAD = 16
#: The bit of a batch's attributes that marks it as part of a transaction (KIP-98).
TRANSACTIONAL = 0x10
cdef Py_ssize_t _BATCH_OVERHEAD = BATCH_OVERHEAD


@cython.final
cdef class RequestSealer:
    """Seals batches of new messages, each with the next sequence numbers of its partition.

    *batcher*: of the broker. *batch_type*: the class of batches. *checksum*: as for
    :func:`encode_batch`. *compressor*: ``None``, or an object with ``compress`` and ``attribute``.
    *metrics*: a :class:`~pykaproducer._pipeline.metrics.ProducerMetrics`. *worker*: the stage, for
    a trace. *transactional*: the batches belong to transactions. Then only a partition whose
    sequencer has the very object :attr:`transaction` as its producer id is sealed here.
    """

    cdef Batcher batcher
    cdef object batch_type, checksum, compress, worker
    cdef RequestMetrics metrics
    cdef int attributes
    cdef bint idempotent, transactional
    #: The ProducerId of the open transaction; None if none is open.
    cdef public object transaction
    #: Bytes left in the request.
    cdef public Py_ssize_t room
    #: Number of batches sealed so far.
    cdef readonly int64_t sealed_so_far
    #: The buffer in hand when :meth:`seal` returned or raised.
    cdef readonly BufferState buffer
    # The statistics of the last batch's topic, which may be forgotten between two requests.
    cdef str topic
    cdef TopicMetrics topic_metrics

    def __init__(self, Batcher batcher not None, batch_type, checksum, compressor,
                 RequestMetrics metrics not None, *, worker=None, bint idempotent,
                 bint transactional=False):
        self.batcher = batcher
        self.batch_type = batch_type
        self.checksum = checksum
        self.compress = None if compressor is None else compressor.compress
        self.attributes = 0 if compressor is None else compressor.attribute
        if transactional:
            self.attributes |= TRANSACTIONAL
        self.metrics = metrics
        self.worker = worker
        self.idempotent = idempotent
        self.transactional = transactional

    def begin(self, Py_ssize_t room):
        """Begin a request of at most *room* bytes."""
        self.room = room
        self.topic = None

    def seal(self, list batches not None, double now):
        """Seal a batch of each ordinary buffer in turn, as far as they fit, into *batches*.

        Returns the first buffer that is not ordinary, for the caller to handle before it calls this
        again; None when the request is complete. A buffer is ordinary if new messages are first in
        it, and its sequence numbers are valid. No sequence number was used if this raises
        MemoryError, as there is no memory for a batch of :attr:`buffer`: its unsettled rows are
        pending again. Or CompressionError: they are in ``error.parts``, and the caller is to fail
        them.
        """
        cdef BufferState buffer
        while True:
            buffer = self.buffer = next_in_turn(self.batcher)
            if buffer is None or not self.is_ordinary(buffer):
                return buffer
            if not self.fits(buffer, batches) or not self.seal_next(buffer, batches, now):
                return None

    def fits(self, BufferState buffer not None, list batches not None):
        """Return whether *buffer*'s next batch fits behind *batches*. If not, it stays first."""
        if not batches or self.compress is not None \
                or size_of_next(self.batcher, buffer) <= self.room:
            return True
        self.batcher.stays_first(buffer)
        return False

    cdef bint is_ordinary(self, BufferState buffer) except -1:
        head = buffer.pending[0]
        if type(head) is not Slice or (<Slice>head).level or (<Slice>head).most:
            return False
        if not self.idempotent:
            return True
        if buffer.sequencer.producer is None or buffer.sequencer.stale:
            return False
        return not self.transactional or buffer.sequencer.producer is self.transaction

    def seal_next(self, BufferState buffer not None, list batches not None, double now):
        """Seal the next batch of *buffer*, and add it to *batches* unless it does not fit.

        *buffer* starts with a slice, and has a producer id if that is needed. Returns whether there
        may be room for more. Raises MemoryError and CompressionError as :meth:`seal`.
        """
        cdef BatchState batch
        cdef list parts
        if self.topic is not buffer.topic:      # first, as this may raise
            self.topic_metrics = self.metrics.topic(buffer.topic)
            self.topic = buffer.topic
        parts = take_slices(self.batcher, buffer)
        if parts:
            batch = self.sealed(buffer, parts, batches)
            if len(batches) > 1 and batch.payload.size > self.room:
                batches.pop()
                self.batcher.put_back(batch)
                return False
            count_sealed(self.metrics, batch, now, self.topic_metrics)
            self.room -= batch.payload.size + _BATCH_OVERHEAD
            # If one of the following raises, the batch is sent all the same.
            if self.metrics.trace is not None:
                self.metrics.trace.sealed(self.worker, batch)
        reschedule(self.batcher, buffer)
        return True

    cdef BatchState sealed(self, BufferState buffer, list parts, list batches):
        """Make a batch of *parts*, claimed slices of *buffer*, and add it to *batches*.

        It is unanswered from now on.
        """
        cdef BatchState batch
        cdef Slice part
        cdef int level = 0, retries_used = 0
        for part in parts:
            level = max(level, part.level)
            retries_used = max(retries_used, part.retries_used)
        try:
            batch = self.encoded(buffer, parts, level)
            batches.append(batch)
            try:
                buffer.unanswered.append(batch)
            except MemoryError:
                batches.pop()
                raise
        except (MemoryError, CompressionError) as error:
            for part in parts:
                part.unclaim()
            if isinstance(error, CompressionError):
                error.parts = parts
            else:
                buffer.requeue_front(parts)
            raise
        batch.retries_used = retries_used
        number_batch(buffer.sequencer, batch)
        self.sealed_so_far += 1
        return batch

    cdef BatchState encoded(self, BufferState buffer, list parts, int level):
        """Return a batch of *parts*, which are claimed, with the next sequence numbers of *buffer*.

        It does not count as sealed: see number_batch(). Several threads may call this at once.
        """
        cdef SequencerState sequencer = buffer.sequencer
        if not self.idempotent:
            return self.encoded_as(buffer, parts, level, -1, -1, -1)
        return self.encoded_as(buffer, parts, level, sequencer.producer.producer_id,
                               sequencer.producer.epoch, sequencer.next_sequence)

    cdef BatchState encoded_as(self, BufferState buffer, list parts, int level,
                               int64_t producer_id, int producer_epoch, int64_t first_sequence):
        cdef BatchHeader header
        cdef RecordBatch payload
        header.attributes = self.attributes
        header.producer_id = producer_id
        header.producer_epoch = producer_epoch
        header.base_sequence = first_sequence
        payload = encode_parts(parts, self.checksum, self.compress, &header)
        batch = <BatchState?>self.batch_type(buffer.topic, buffer.partition, payload, parts,
                                             header.count, level)
        batch.buffer = buffer
        batch.producer_id = producer_id
        batch.producer_epoch = producer_epoch
        batch.first_sequence = first_sequence
        return batch

    def split(self, BatchState batch not None):
        """Seal the rows of *batch* again, as two batches over its sequence numbers.

        *batch* has several rows, and was not appended. Returns None if a row has an outcome: then
        its number would be missing. Raises MemoryError and CompressionError; then *batch* is as it
        was.
        """
        cdef list halves, made = []
        cdef BatchState half
        cdef int64_t rows = 0
        halves = claimed_again(batch.parts, batch.count, (batch.count + 1) // 2)
        if halves is None:
            return None
        try:
            while halves:
                half = self.encoded_as(batch.buffer, halves.pop(0), batch.level, batch.producer_id,
                                       batch.producer_epoch,
                                       (batch.first_sequence + rows) % (<int64_t>1 << 31))
                half.retries_used = batch.retries_used
                half.number = batch.number
                made.append(half)
                rows += half.count
        finally:
            unpin_all(halves)
        self.sealed_so_far += len(made) - 1
        return made


cdef list claimed_again(list parts, int64_t count, int64_t most):
    """Claim the *count* rows of *parts*, which are claimed, for batches of *most* rows each.

    Returns the slices of each batch, or None if a row has an outcome. Leaves *parts* as they are.
    """
    cdef list found = [], last = []
    cdef Slice part, rest, piece
    cdef int64_t room = 0
    try:
        for part in parts:
            rest = part.chunk.pick(part.row_numbers(), part.partition)
            while rest.count:
                if room == 0:
                    last = []
                    found.append(last)
                    room = most
                last.append(None)       # its place, before rows are claimed
                piece = rest.claim((<Py_ssize_t>1 << 62), room)
                if piece is None:
                    last.pop()
                    break
                last[len(last) - 1] = piece
                room -= piece.count
                count -= piece.count
    except MemoryError:
        unpin_all(found)
        raise
    if count:
        unpin_all(found)
        return None
    return found


cdef unpin_all(list batches):
    """Unpin the slices of *batches*, which are not encoded after all."""
    cdef list parts
    for parts in batches:
        for part in parts:
            if part is not None:
                unpin((<Slice>part).chunk)
