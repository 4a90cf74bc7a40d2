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
    ``crc32c(buffer) -> int``. *compress*: ``compress(buffer) -> bytes``, or None; the number of its
    codec is in the low bits of *attributes*. The records are written without the GIL. Raises
    ValueError if there are no rows, or a slice is not claimed, CompressionError, and MemoryError.
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
    cdef RecordBatch batch = write_records(parts, header)
    cdef Py_ssize_t plain_size = batch.size
    if compress is not None:
        batch = with_compressed_records(batch, compress)
    batch.plain_size = plain_size
    batch.largest_record = header.largest
    put_header(batch.data, batch.size, header)
    put_be32(batch.data + 17, <uint32_t>checksum(memoryview(batch)[21:]))
    return batch


cdef bint is_pinned(Chunk chunk) noexcept:
    """Return whether a reader has pinned *chunk*."""
    cdef bint found
    enter_guard(&chunk.lock)
    found = chunk.pins > 0
    leave_guard(&chunk.lock)
    return found


cdef RecordBatch write_records(list parts, BatchHeader *header):
    """Write the records of claimed slices, leaving room for a header, and unpin the slices."""
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
    cdef uint32_t i, count = header.count
    cdef const Row *row
    cdef int64_t delta, base = header.base_timestamp, most = header.most_timestamp
    cdef int64_t size, largest = header.largest
    for i in range(part.count):
        row = &part.chunk.rows[part.at(i)]
        delta = row.timestamp - base
        if row.timestamp > most:
            most = row.timestamp
        size = record_size(row, delta, count)
        if size > largest:
            largest = size
        p = put_varint(p, size)
        p[0] = 0                                    # record attributes: none are defined
        p = put_varint(p + 1, delta)
        p = put_varint(p, count)
        p = put_varint(p, row.key_size)
        p = put_bytes(p, row.key, row.key_size)
        p = put_varint(p, row.value_size)
        p = put_bytes(p, row.value, row.value_size)
        if row.headers_size:
            p = put_bytes(p, row.headers, row.headers_size)
        else:
            p[0] = 0                                # no headers
            p += 1
        count += 1
    header.count = count
    header.most_timestamp = most
    header.largest = largest
    return p


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
