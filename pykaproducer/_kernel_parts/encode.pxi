# The record batch of message format v2 (KIP-98), written from rows.

cdef struct BatchHeader:
    int attributes
    int64_t base_timestamp
    int64_t most_timestamp
    int64_t producer_id
    int producer_epoch
    int64_t base_sequence
    uint32_t count
    int64_t largest             # bytes of the largest record


class CompressionError(Exception):
    """A codec raised an exception other than MemoryError, which is the cause.

    ``parts``: the slices of the batch, which are unclaimed, if :class:`RequestSealer` raises it.
    """

    parts = ()


def encode_batch(list parts not None, checksum, *, compress=None, int attributes=0,
                 int64_t producer_id=-1, int producer_epoch=-1, int64_t base_sequence=-1):
    """Encode claimed slices as one record batch and return ``(batch, count)``.

    *parts*: newly claimed slices of one partition, in order; this unpins them. *checksum*:
    ``crc32c(buffer, checksum of what precedes it) -> int``. *compress*: ``compress(buffer) ->
    bytes``, or None; the number of its codec is in the low bits of *attributes*. The records are
    written without the GIL. Raises ValueError if there are no rows, or a slice is not claimed,
    CompressionError, and MemoryError.
    """
    cdef BatchHeader header
    cdef RecordBatch batch
    header.attributes = attributes
    header.producer_id = producer_id
    header.producer_epoch = producer_epoch
    header.base_sequence = base_sequence
    batch = encode_parts(parts, checksum, compress, &header)
    return batch, header.count


cdef RecordBatch encode_parts(list parts, checksum, compress, BatchHeader *header):
    """Encode *parts* as :func:`encode_batch`, with the attributes and numbers in *header*.

    Fills in the rest of *header*.
    """
    cdef bint as_pieces = compress is None and are_large(parts)
    cdef RecordBatch batch = write_records(parts, header, as_pieces)
    cdef Py_ssize_t plain_size = batch.size
    cdef uint8_t *begin
    if compress is not None:
        batch = with_compressed_records(batch, compress)
    batch.plain_size = plain_size
    batch.largest_record = header.largest
    begin = batch.begin()
    put_header(begin, batch.size, header)
    put_be32(begin + 17, batch.checksum(checksum))
    return batch


cdef bint are_large(list parts) except -1:
    """Return whether the values of *parts* are large, and some of them referred to."""
    cdef Py_ssize_t nbytes = 0, count = 0, sources = 0
    cdef Slice part
    for part in parts:
        if part is None:
            return False
        sources += part.chunk.n_sources
        nbytes += part.nbytes
        count += part.count
    return sources > 0 and nbytes >= count * _LARGE


cdef bint is_pinned(Chunk chunk) noexcept:
    """Return whether a reader has pinned *chunk*."""
    cdef bint found
    enter_guard(&chunk.lock)
    found = chunk.pins > 0
    leave_guard(&chunk.lock)
    return found


cdef RecordBatch write_records(list parts, BatchHeader *header, bint as_pieces):
    """Write the records of claimed slices, leaving room for a header, and unpin the slices.

    *as_pieces*: do not copy large values that are referred to.
    """
    cdef Py_ssize_t bound = _HEADER
    cdef RecordBatch batch
    cdef Slice part
    cdef uint8_t *p
    for part in parts:
        if part is None or not is_pinned(part.chunk):
            raise ValueError("a batch requires slices that have been claimed")
        bound += part.nbytes + <Py_ssize_t>part.count * _RECORD
        if part.count == 0:
            raise ValueError("a batch requires rows, but a slice has none")
    if not parts:
        raise ValueError("a batch requires rows, but there is no slice")
    part = <Slice>parts[0]
    header.base_timestamp = header.most_timestamp = part.chunk.rows[part.at(0)].timestamp
    header.count = 0
    header.largest = 0
    try:
        if as_pieces:
            batch = pieces_of_records(parts, header)
            if batch is not None:
                return batch
        batch = RecordBatch(bound)
        p = batch.data + _HEADER
        for part in parts:
            if bound < _SHORT_WORK:
                p = encode_records(part, p, header)
                continue
            with nogil:
                p = encode_records(part, p, header)
                want_gil()
            got_gil()
    finally:
        for part in parts:
            unpin(part.chunk)
    batch.end_at(p - batch.data)
    return batch


cdef RecordBatch with_compressed_records(RecordBatch batch, compress):
    cdef bytes body
    try:
        body = <bytes?>compress(memoryview(batch)[_HEADER:])
    except MemoryError:
        raise
    except Exception as error:
        raise CompressionError(f"{type(error).__name__}: {error}") from error
    batch = RecordBatch(_HEADER + len(body))
    memcpy(batch.data + _HEADER, PyBytes_AS_STRING(body), len(body))
    return batch


cdef void put_header(uint8_t *p, Py_ssize_t size, const BatchHeader *header) noexcept nogil:
    """Write the header except the checksum at 17, which covers all bytes after it."""
    put_be64(p, 0)                                  # base offset: the broker's
    put_be32(p + 8, <uint32_t>(size - 12))          # number of bytes after this length
    put_be32(p + 12, 0xffffffffu)                   # partition leader epoch: the broker's
    p[16] = 2                                       # magic
    put_be16(p + 21, <uint16_t>header.attributes)
    put_be32(p + 23, header.count - 1)              # last offset delta
    put_be64(p + 27, <uint64_t>header.base_timestamp)
    put_be64(p + 35, <uint64_t>header.most_timestamp)
    put_be64(p + 43, <uint64_t>header.producer_id)
    put_be16(p + 51, <uint16_t>header.producer_epoch)
    put_be32(p + 53, <uint32_t>header.base_sequence)
    put_be32(p + 57, header.count)


cdef uint8_t *encode_records(Slice part, uint8_t *p, BatchHeader *header) noexcept nogil:
    """Write the records of *part*, count them in *header*, and return the end of them."""
    cdef uint32_t i
    cdef const Row *row
    for i in range(part.count):
        row = &part.chunk.rows[part.at(i)]
        p = put_up_to_value(p, row, header)
        p = put_bytes(p, row.value, row.value_size)
        p = put_after_value(p, row)
    return p


cdef inline uint8_t *put_up_to_value(uint8_t *p, const Row *row,
                                     BatchHeader *header) noexcept nogil:
    """Write the record of *row* up to its value, and count the record in *header*."""
    cdef int64_t delta = row.timestamp - header.base_timestamp
    cdef int64_t size = record_size(row, delta, header.count)
    if row.timestamp > header.most_timestamp:
        header.most_timestamp = row.timestamp
    if size > header.largest:
        header.largest = size
    p = put_varint(p, size)
    p[0] = 0                                        # record attributes: none are defined
    p = put_varint(p + 1, delta)
    p = put_varint(p, header.count)
    p = put_varint(p, row.key_size)
    p = put_bytes(p, row.key, row.key_size)
    header.count += 1
    return put_varint(p, row.value_size)


cdef inline uint8_t *put_after_value(uint8_t *p, const Row *row) noexcept nogil:
    if row.headers_size:
        return put_bytes(p, row.headers, row.headers_size)
    p[0] = 0                                        # no headers
    return p + 1


cdef RecordBatch pieces_of_records(list parts, BatchHeader *header):
    """Return the records of *parts*, after room for a header, without copying large values.

    Returns None if most of the bytes would have to be copied. The batch keeps the objects to which
    it refers, because its rows may expire while it is being written.
    """
    cdef RecordBatch batch
    cdef Slice part
    cdef const Row *row
    cdef PyObject *source
    cdef uint32_t i
    cdef uint8_t *begin
    cdef uint8_t *p
    cdef Py_ssize_t bound = _HEADER, kept = 0
    cdef list pieces = []
    for part in parts:
        bound += <Py_ssize_t>part.count * _RECORD
        for i in range(part.count):
            row = &part.chunk.rows[part.at(i)]
            bound += payload_size(row)
            if source_of(part.chunk, row) != NULL:
                kept += row.value_size
    if 2 * kept < bound:
        return None
    batch = RecordBatch(bound - kept)
    begin = batch.data
    p = begin + _HEADER
    batch.size = 0
    for part in parts:
        for i in range(part.count):
            row = &part.chunk.rows[part.at(i)]
            p = put_up_to_value(p, row, header)
            source = source_of(part.chunk, row)
            if source != NULL:
                pieces.append(PyBytes_FromStringAndSize(<char *>begin, p - begin))
                batch.size += p - begin + row.value_size
                begin = p
                if PyBytes_CheckExact(<object>source):
                    pieces.append(<object>source)
                else:
                    pieces.append(referred(row.value, row.value_size, <object>source))
            else:
                p = put_bytes(p, row.value, row.value_size)
            p = put_after_value(p, row)
    pieces.append(PyBytes_FromStringAndSize(<char *>begin, p - begin))
    batch.size += p - begin
    batch.become(pieces)
    return batch


cdef inline PyObject *source_of(Chunk chunk, const Row *row) noexcept:
    """Return the object that has the large value of *row*; NULL: it is not large, or a copy.

    The chunk may be open, and then get another array of blocks at any time.
    """
    cdef PyObject *source = NULL
    if row.value_size >= _LARGE:
        enter_guard(&chunk.lock)
        source = chunk.blocks[row.block].source
        leave_guard(&chunk.lock)
    return source


cdef inline int64_t record_size(const Row *row, int64_t timestamp_delta,
                                int64_t offset_delta) noexcept nogil:
    """Return the size of a record without its length field."""
    return (1 + varint_size(timestamp_delta) + varint_size(offset_delta)
            + varint_size(row.key_size) + varint_size(row.value_size)
            + (0 if row.headers_size else 1) + payload_size(row))


cdef inline uint8_t *put_bytes(uint8_t *p, const uint8_t *data, Py_ssize_t size) noexcept nogil:
    """Copy *size* bytes to *p* and return the end of them. Copy nothing for -1 (None)."""
    if size <= 0:
        return p
    memcpy(p, data, size)
    return p + size
