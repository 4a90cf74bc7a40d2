# The arguments of send(): checked, referenced in place, added to the chunk.

cdef struct Payload:
    const uint8_t *data[3]              # key, value, headers
    Py_ssize_t size[3]                  # -1: None; of the headers 0: none
    Py_ssize_t total                    # bytes of all three
    PyObject *large                     # the value, if a row may refer to it; else NULL: refer.pxi
    Py_buffer views[2]
    int open                            # bit i: views[i] must be released

cdef struct Terms:                      # options of a message
    int32_t partition                   # -1: the partitioner decides
    int64_t timestamp                   # ms since the epoch; -1: now
    int64_t timeout                     # ns
    int64_t transaction                 # the ordinal of that in which send() began; 0: none


cdef int64_t checked_int(object number, str name, int64_t least, int64_t most) except? -1:
    cdef int64_t n
    if not PyLong_CheckExact(number):
        if not isinstance(number, int) or isinstance(number, bool):
            raise TypeError(f"{name} must be an int, not {type(number).__name__}")
        number = int.__pos__(number)        # a subclass may override comparisons
    if not least <= number <= most:
        raise ValueError(f"{name} must be between {least} and {most}, not {number}")
    n = number
    return n


cdef inline bint is_coroutine_function(object function):
    """Return whether *function* is an ``async def``. Inspects its code and calls nothing."""
    if PyMethod_Check(function):
        function = <object>PyMethod_GET_FUNCTION(function)
    if not PyFunction_Check(function):
        return False
    return (<PyCodeObject *>PyFunction_GET_CODE(function)).co_flags & CO_COROUTINE != 0


cdef int take_field(Payload *payload, int which, object data, str name) except -1:
    """Reference the key (0) or the value (1) in place."""
    if data is None:
        payload.data[which] = NULL
        payload.size[which] = -1
        return 0
    if PyBytes_CheckExact(data):
        payload.data[which] = <const uint8_t *>PyBytes_AS_STRING(data)
        payload.size[which] = len(<bytes>data)
        if which == 1 and payload.size[1] >= _LARGE:
            payload.large = <PyObject *>data
    elif isinstance(data, (bytes, bytearray, memoryview)):
        try:
            PyObject_GetBuffer(data, &payload.views[which], PyBUF_SIMPLE)
        except BufferError as error:
            raise ValueError(f"{name} must be contiguous in memory") from error
        payload.open |= 1 << which
        payload.data[which] = <const uint8_t *>payload.views[which].buf
        payload.size[which] = payload.views[which].len
    else:
        raise TypeError(f"{name} must be bytes, bytearray, memoryview or None, "
                        f"not {type(data).__name__}; set {name}_serializer to send other types")
    payload.total += payload.size[which]
    return 0


cdef void release_fields(Payload *payload) noexcept:
    if payload.open & 1:
        PyBuffer_Release(&payload.views[0])
    if payload.open & 2:
        PyBuffer_Release(&payload.views[1])


cdef bytes take_headers(Payload *payload, headers):
    """Encode the headers. Return the bytes that *payload* then refers to, or None."""
    cdef bytes encoded
    payload.size[2] = 0
    if headers is None:
        return None
    encoded = encode_headers(headers)
    payload.data[2] = <const uint8_t *>PyBytes_AS_STRING(encoded)
    payload.size[2] = len(encoded)
    payload.total += payload.size[2]
    return encoded


cdef bytes encode_headers(headers):
    """Return the headers in wire form; empty if there are none."""
    cdef bytearray out = bytearray()
    cdef tuple fixed
    if not isinstance(headers, (list, tuple)):
        raise TypeError(f"headers must be a list of pairs (str, bytes), "
                        f"not {type(headers).__name__}")
    fixed = tuple(headers)          # the original might change while it is encoded
    if not fixed:
        return b""
    put_int(out, len(fixed))
    for position, header in enumerate(fixed):
        try:
            name, data = header
        except (TypeError, ValueError):
            raise TypeError(f"headers[{position}] must be a pair (str, bytes), "
                            f"not {type(header).__name__}") from None
        encode_header(out, position, name, data)
    return bytes(out)


cdef encode_header(bytearray out, position, name, data):
    cdef bytes encoded, content
    if not isinstance(name, str):
        raise TypeError(f"headers[{position}]: the name must be str, "
                        f"not {type(name).__name__}")
    try:
        encoded = PyUnicode_AsUTF8String(name)      # bypasses encode() of a subclass
    except UnicodeEncodeError as error:
        raise ValueError(f"headers[{position}]: the name {name!r} cannot be encoded as "
                         f"UTF-8") from error
    put_int(out, len(encoded))
    out += encoded
    if data is None:
        put_int(out, -1)
    elif isinstance(data, (bytes, bytearray, memoryview)):
        content = PyBytes_FromObject(data)
        put_int(out, len(content))
        out += content
    else:
        raise TypeError(f"headers[{position}]: the value must be bytes or None, "
                        f"not {type(data).__name__}")


cdef put_int(bytearray out, int64_t n):
    cdef uint8_t buffer[10]
    cdef uint8_t *end = put_varint(buffer, n)
    out += PyBytes_FromStringAndSize(<char *>buffer, end - buffer)


# -- into the chunk: C memory only ---------------------------------------------------------

cdef inline bint has_room(Chunk chunk, const Payload *payload) noexcept nogil:
    """Return whether there is an open chunk with room for the message.

    A caller may read a pinned chunk without the GIL: see prepared(). Its row table must stay then.
    """
    return chunk is not None and chunk.count < _CHUNK_ROWS \
        and chunk.nbytes + payload.total <= _CHUNK_BYTES \
        and not (chunk.pins and chunk.count == chunk.capacity)


cdef bint append_row(Chunk chunk, const Payload *payload, const Terms *terms, int64_t now,
                     PyObject *callback) noexcept:
    """Add one message to the chunk. Return false if there is no memory."""
    cdef bint with_callback = callback != <PyObject *>None
    cdef Row *row = chunk.new_row(with_callback)
    cdef uint8_t *p
    if row == NULL:
        return False
    if payload.large != NULL:
        if not refer_to_value(chunk, row, payload):
            return False
    else:
        p = chunk.room(payload.total)
        if p == NULL:
            return False
        put_payload(row, p, payload)
        row.block = <uint16_t>chunk.filling
    put_terms(chunk, row, terms, now)
    if with_callback:
        Py_INCREF(<object>callback)
        chunk.callbacks[chunk.count] = callback
    chunk.nbytes += payload.total
    chunk.count += 1
    return True


cdef inline void put_terms(Chunk chunk, Row *row, const Terms *terms, int64_t now) noexcept nogil:
    row.timestamp = terms.timestamp
    if row.timestamp < 0:
        row.timestamp = (now + chunk.since_epoch) // 1000000
    row.deadline = now + terms.timeout
    row.partition = terms.partition
    row.flags = OWN_TIME if terms.timeout != chunk.timeout else 0
    row.handle_count = 0
    row.error = 0
    if row.deadline < chunk.earliest:
        chunk.earliest = row.deadline


cdef inline void put_payload(Row *row, uint8_t *p, const Payload *payload) noexcept nogil:
    row.key = p
    row.key_size = <int32_t>payload.size[0]
    p = put_bytes(p, payload.data[0], payload.size[0])
    row.value = p
    row.value_size = <int32_t>payload.size[1]
    p = put_bytes(p, payload.data[1], payload.size[1])
    row.headers = p
    row.headers_size = <int32_t>payload.size[2]
    if payload.data[2] != NULL:             # otherwise they have been written already
        put_bytes(p, payload.data[2], payload.size[2])
