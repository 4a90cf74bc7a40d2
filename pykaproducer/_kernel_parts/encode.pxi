# The record batch of message format v2 (KIP-98), written from rows.

def encode_batch(list parts, checksum, *, compress=None, int attributes=0,
                 int64_t producer_id=-1, int producer_epoch=-1, int64_t base_sequence=-1):
    """Encode claimed slices as one record batch; returns ``(batch, count)``.

    *parts*: slices of one partition, in order, just claimed (this unpins them). *checksum*:
    ``crc32c(buffer) -> int``. *compress*: ``compress(buffer) -> bytes`` or None, its codec's
    number in the low bits of *attributes*. The records are written without the GIL.
    """
    cdef Py_ssize_t bound = _HEADER
    cdef Slice part
    cdef int64_t base_timestamp, most_timestamp
    cdef uint32_t count = 0
    cdef PyObject *raw
    cdef uint8_t *p
    cdef bytes body
    for part in parts:
        bound += part.nbytes + <Py_ssize_t>part.count * _RECORD
        if part.count == 0:
            raise ValueError("a batch needs rows: a slice has none")
    if not parts:
        raise ValueError("a batch needs rows: there is no slice")
    part = <Slice>parts[0]
    base_timestamp = most_timestamp = part.chunk.rows[part.at(0)].timestamp
    try:
        raw = new_bytes(NULL, bound)
        p = bytes_data(raw) + _HEADER
        for part in parts:
            with nogil:
                p = encode_records(part, p, base_timestamp, &most_timestamp, count)
            count += part.count
    finally:
        for part in parts:
            part.chunk.unpin()
    _PyBytes_Resize(&raw, p - bytes_data(raw))
    batch = <object>raw
    Py_DECREF(batch)                                # the name holds it now
    if compress is not None:
        body = compress(memoryview(batch)[_HEADER:])
        if not isinstance(body, bytes):
            raise TypeError(f"compress must return bytes, not {type(body).__name__}")
        raw = new_bytes(NULL, _HEADER + len(body))
        memcpy(bytes_data(raw) + _HEADER, <const char *>PyBytes_AS_STRING(body), len(body))
        batch = <object>raw
        Py_DECREF(batch)
    p = <uint8_t *>PyBytes_AS_STRING(batch)
    put_be64(p, 0)                                  # base offset: the broker's
    put_be32(p + 8, <uint32_t>(len(batch) - 12))
    put_be32(p + 12, 0xffffffffu)                   # partition leader epoch: the broker's
    p[16] = 2                                       # magic
    put_be16(p + 21, <uint16_t>attributes)
    put_be32(p + 23, count - 1)                     # last offset delta
    put_be64(p + 27, <uint64_t>base_timestamp)
    put_be64(p + 35, <uint64_t>most_timestamp)
    put_be64(p + 43, <uint64_t>producer_id)
    put_be16(p + 51, <uint16_t>producer_epoch)
    put_be32(p + 53, <uint32_t>base_sequence)
    put_be32(p + 57, count)
    put_be32(p + 17, <uint32_t>checksum(memoryview(batch)[21:]))
    return batch, count


cdef uint8_t *encode_records(Slice part, uint8_t *p, int64_t base_timestamp,
                             int64_t *most_timestamp, uint32_t offset_delta) noexcept nogil:
    cdef uint32_t i
    cdef const Row *row
    cdef int64_t length, delta
    for i in range(part.count):
        row = &part.chunk.rows[part.at(i)]
        delta = row.timestamp - base_timestamp
        if row.timestamp > most_timestamp[0]:
            most_timestamp[0] = row.timestamp
        length = (1 + varint_size(delta) + varint_size(offset_delta)
                  + varint_size(row.key_size) + varint_size(row.value_size))
        if row.key_size > 0:
            length += row.key_size
        if row.value_size > 0:
            length += row.value_size
        length += row.headers_size if row.headers_size else 1
        p = put_varint(p, length)
        p[0] = 0                                    # record attributes: none are defined
        p = put_varint(p + 1, delta)
        p = put_varint(p, offset_delta)
        offset_delta += 1
        p = put_varint(p, row.key_size)
        if row.key_size > 0:
            memcpy(p, row.key, row.key_size)
            p += row.key_size
        p = put_varint(p, row.value_size)
        if row.value_size > 0:
            memcpy(p, row.value, row.value_size)
            p += row.value_size
        if row.headers_size:
            memcpy(p, row.headers, row.headers_size)
            p += row.headers_size
        else:
            p[0] = 0                                # no headers
            p += 1
    return p
