# Lines: a piece of text as the rows of a block, without a Python object for each line.
#
# The columns refer to the text, which is a bytes object, so nothing is copied (refer.pxi).

cdef extern from *:
    """
    /* A single byte is the usual separator; an empty one is in no text. */
    static inline const uint8_t *find_text(const uint8_t *p, const uint8_t *end,
                                           const uint8_t *text, int64_t size) {
        if (size == 1) return memchr(p, *text, end - p);
        return size > 0 ? memmem(p, end - p, text, size) : NULL;
    }
    """
    const uint8_t *find_text(const uint8_t *p, const uint8_t *end, const uint8_t *text,
                             int64_t size) nogil

cdef struct Text:               # a part of a line, or of the format
    const uint8_t *data
    int64_t size                # -1: there is none

cdef enum LineFault:
    _FINE
    _TOO_LONG
    _NO_HEADER                  # a header is not NAME:VALUE
    _NO_UTF8                    # the name of a header is not UTF-8
    _NO_TIME
    _NO_SPACE                   # out of memory


cdef Text text_in(data, bint empty=False) except *:
    """Return a part of the format, a bytes object that is kept elsewhere, or None."""
    cdef Text text = Text(NULL, -1)
    if data is not None:
        text.data = <const uint8_t *>PyBytes_AS_STRING(data)
        text.size = len(<bytes>data)
        if not text.size and not empty:
            raise ValueError("a separator must not be empty")
    return text


@cython.final
cdef class LineFormat:
    """The format of lines: ``[TIMESTAMP SEP] [HEADERS SEP] [KEY SEP] VALUE END``.

    *delimiter* ends a line; empty: the whole text is one line. A part whose separator is None, or
    is not in a line, is missing. HEADERS are ``NAME:VALUE`` with commas between them. *null*: a
    key, value or header value equal to it is null. *headers*, *partition* and *timestamp_ms* are
    those of every line. *room*: the bytes of *buffer_memory* that the lines of one :meth:`split`
    may take, unless it is a single line.
    """

    cdef readonly str too_long          # the error of lines that are longer than `longest`

    cdef tuple kept                     # the bytes objects that the texts are in
    cdef Text delimiter, timestamp_end, headers_end, key_end, null, headers
    cdef int64_t n_headers, partition, timestamp, longest, room

    def __cinit__(self, bytes delimiter not None, *, bytes timestamp_separator=None,
                  bytes headers_separator=None, bytes key_separator=None, bytes null=None,
                  headers=(), partition=None, timestamp_ms=None, int64_t max_request_size,
                  int64_t buffer_memory, int64_t room):
        encoded = bytearray()
        for position, (name, value) in enumerate(headers):
            encode_header(encoded, position, name, value)
        self.n_headers = len(headers)
        self.kept = (delimiter, timestamp_separator, headers_separator, key_separator, null,
                     bytes(encoded))
        self.delimiter = text_in(delimiter, empty=True)
        self.timestamp_end = text_in(timestamp_separator)
        self.headers_end = text_in(headers_separator)
        self.key_end = text_in(key_separator)
        self.null = text_in(null, empty=True)
        self.headers = text_in(self.kept[5], empty=True)
        self.partition = -1 if partition is None \
            else checked_int(partition, "partition", 0, _MOST_PARTITION)
        self.timestamp = -1 if timestamp_ms is None \
            else checked_int(timestamp_ms, "timestamp_ms", 0, _MOST_TIMESTAMP)
        self.room = max(room, 0)
        self.longest = min(max_request_size - _HEADER - _RECORD, buffer_memory - _ROW_COST)
        self.too_long = (f"max_request_size is {max_request_size}"
                         if self.longest < buffer_memory - _ROW_COST
                         else f"buffer_memory is {buffer_memory}")
        self.too_long = f"a {'line' if delimiter else 'file'} is too long: {self.too_long}"

    def split(self, bytes data not None, int64_t start, bint last):
        """Return the lines of *data* from position *start* on, up to one that is not complete.

        *last*: no more data follows, so the rest is a line even without a delimiter. ``error`` says
        why the lines end before an invalid one.
        """
        cdef Lines lines = Lines.__new__(Lines)
        cdef int64_t size = len(data) - start, most
        cdef LineFault fault
        if not 0 <= start <= len(data):
            raise ValueError(f"start is {start}, but the data has {len(data)} bytes")
        most = min(<int64_t>_CHUNK_ROWS, self.room // _ROW_COST + 1)
        most = min(most, size // max(self.delimiter.size, 1) + 1)
        lines.begin(self, data, start, most)
        if size < _FIRST_BLOCK:
            fault = split_lines(self, lines, lines.columns, last, most)
        else:
            with nogil:
                fault = split_lines(self, lines, lines.columns, last, most)
                want_gil()
            got_gil()
        lines.complete(fault, self.too_long)
        return lines


@cython.final
cdef class Lines:
    """Lines in a bytes object, and their columns for ``send_many()``."""

    cdef public Columns columns         # may be set to None once the lines are sent
    cdef readonly int64_t start, end    # where the lines are in the data
    cdef readonly int64_t resume        # where to go on: after an invalid line, or at the end
    cdef readonly str error             # why that line is invalid
    cdef bytes data
    cdef int64_t count, cost
    cdef int64_t *ends                  # of each line, with its delimiter
    cdef uint8_t *headers               # being encoded; offsets, as it grows
    cdef int64_t n_headers, headers_room

    def __dealloc__(self):
        free(self.ends)
        free(self.headers)

    def __len__(self):
        return self.count

    def raw(self, int64_t first, int64_t last):
        """Return the lines from *first* up to *last* as they were read, with their delimiters."""
        if not 0 <= first < last <= self.count:
            raise IndexError(f"there are no lines {first}:{last}")
        return self.data[self.ends[first - 1] if first else self.start:self.ends[last - 1]]

    cdef begin(self, LineFormat format, bytes data, int64_t start, int64_t most):
        cdef Columns columns = Columns.__new__(Columns)
        cdef Cells *encoded = &columns.encoded
        self.columns = columns
        self.data = data
        self.start = self.end = self.resume = start
        self.ends = <int64_t *>malloc(most * sizeof(int64_t))
        if self.ends == NULL:
            raise MemoryError()
        columns.in_objects = True
        columns.objects.append(data)
        take_spans(columns, &columns.value, data, most)
        if format.key_end.size > 0:
            take_spans(columns, &columns.key, data, most)
        if format.headers_end.size > 0:
            take_spans(columns, encoded, data, most)
        elif format.n_headers:
            # One cell for all rows.
            encoded.kind = FIXED
            constant = bytearray()
            put_int(constant, format.n_headers)
            constant = bytes(constant) + <bytes>format.kept[5]
            columns.objects.append(constant)
            encoded.data = <const uint8_t *>PyBytes_AS_STRING(constant)
            encoded.width = len(constant)
        if format.partition >= 0:
            fill_numbers(columns, &columns.partition, format.partition, 1, 0)
        if format.timestamp_end.size > 0:
            fill_numbers(columns, &columns.timestamp, format.timestamp, most, sizeof(int64_t))
            columns.timestamp.validity = <const uint8_t *>columns.hold(most // 8 + 1)
        elif format.timestamp >= 0:
            fill_numbers(columns, &columns.timestamp, format.timestamp, 1, 0)

    cdef complete(self, LineFault fault, str too_long):
        cdef void *ends = realloc(self.ends, max(self.count, 1) * sizeof(int64_t))
        if ends != NULL:
            self.ends = <int64_t *>ends
        self.columns.count = self.count
        if self.headers != NULL:
            encoded = PyBytes_FromStringAndSize(<const char *>self.headers, self.n_headers)
            self.columns.objects.append(encoded)
            self.columns.encoded.data = <const uint8_t *>PyBytes_AS_STRING(encoded)
            free(self.headers)
            self.headers = NULL
        if fault == _NO_SPACE:
            raise MemoryError()
        if fault == _TOO_LONG:
            self.error = too_long
        elif fault == _NO_HEADER:
            self.error = "a header is not NAME:VALUE"
        elif fault == _NO_UTF8:
            self.error = "the name of a header is not valid UTF-8"
        elif fault == _NO_TIME:
            self.error = "a timestamp is not a number of milliseconds"


cdef take_spans(Columns columns, Cells *cells, bytes data, int64_t most):
    cells.kind = SPANS
    cells.data = <const uint8_t *>PyBytes_AS_STRING(data)
    cells.offsets = columns.hold(most * sizeof(Span))


cdef fill_numbers(Columns columns, Numbers *numbers, int64_t value, int64_t most, int64_t stride):
    """Prepare a column of *most* numbers; *stride* 0: the only one is that of all rows."""
    cdef int64_t i
    cdef int64_t *found = <int64_t *>columns.hold(most * sizeof(int64_t))
    for i in range(most):
        found[i] = value
    numbers.there = True
    numbers.data = <const uint8_t *>found
    numbers.width = sizeof(int64_t)
    numbers.stride = stride
    numbers.signed = True
    numbers.times = numbers.parts = 1


# -- splitting, without the GIL --------------------------------------------------------------------

cdef LineFault split_lines(LineFormat format, Lines lines, Columns columns, bint last,
                           int64_t most) noexcept nogil:
    """Find the lines of ``lines.data`` and describe them in *columns*."""
    cdef const uint8_t *data = bytes_data(<PyObject *>lines.data)
    cdef const uint8_t *p = data + lines.end
    cdef const uint8_t *end = data + bytes_size(<PyObject *>lines.data)
    cdef const uint8_t *stop
    cdef Text line
    cdef LineFault fault
    cdef int64_t cost
    while lines.count < most:
        stop = find_text(p, end, format.delimiter.data, format.delimiter.size)
        if stop == NULL and (not last or (p == end and (format.delimiter.size or p > data))):
            break
        line = Text(p, (end if stop == NULL else stop) - p)
        p = end if stop == NULL else stop + format.delimiter.size
        fault = describe_line(format, lines, columns, data, line, &cost)
        if fault == _FINE and lines.count and lines.cost + cost > format.room:
            break
        lines.resume = p - data
        if fault != _FINE:
            return fault
        lines.end = lines.resume
        lines.ends[lines.count] = lines.end
        lines.cost += cost
        lines.count += 1
    return _FINE


cdef LineFault describe_line(LineFormat format, Lines lines, Columns columns, const uint8_t *data,
                             Text rest, int64_t *cost) noexcept nogil:
    """Put the parts of the next line into the columns. *cost*: the bytes of buffer_memory."""
    cdef int64_t i = lines.count
    cdef Text part
    cdef LineFault fault
    cost[0] = columns.encoded.width
    if format.timestamp_end.size > 0 and cut_before(&rest, &format.timestamp_end, &part) \
            and not put_time(&part, <int64_t *>columns.timestamp.data + i):
        return _NO_TIME
    if columns.timestamp.validity != NULL and (<int64_t *>columns.timestamp.data)[i] >= 0:
        (<uint8_t *>columns.timestamp.validity)[i >> 3] |= <uint8_t>(1 << (i & 7))
    if format.headers_end.size > 0:
        cut_before(&rest, &format.headers_end, &part)
        fault = put_line_headers(format, lines, part, span_at(&columns.encoded, i))
        if fault != _FINE:
            return fault
        cost[0] = span_at(&columns.encoded, i).size
    if format.key_end.size > 0:
        cut_before(&rest, &format.key_end, &part)
        cost[0] += put_span(format, data, part, span_at(&columns.key, i))
    cost[0] += put_span(format, data, rest, span_at(&columns.value, i))
    if cost[0] > format.longest:
        return _TOO_LONG
    cost[0] += _ROW_COST
    return _FINE


cdef inline Span *span_at(const Cells *cells, int64_t i) noexcept nogil:
    return <Span *>cells.offsets + i


cdef inline int64_t put_span(LineFormat format, const uint8_t *data, Text text,
                             Span *span) noexcept nogil:
    """Describe *text*, which may be null. Return its size."""
    if text.size >= 0 and is_null_text(format, text):
        text.size = -1
    span.start = text.data - data if text.size >= 0 else 0
    span.size = text.size
    return max(text.size, 0)


cdef inline bint is_null_text(LineFormat format, Text text) noexcept nogil:
    return text.size == format.null.size and memcmp(text.data, format.null.data, text.size) == 0


cdef inline bint cut_before(Text *rest, const Text *separator, Text *part) noexcept nogil:
    """Move what is before *separator* from *rest* to *part*. Return false if it is not there."""
    cdef const uint8_t *found = find_text(rest.data, rest.data + rest.size, separator.data,
                                          separator.size)
    part[0] = Text(NULL, -1)
    if found == NULL:
        return False
    part[0] = Text(rest.data, found - rest.data)
    rest.size -= part.size + separator.size
    rest.data = found + separator.size
    return True


cdef bint put_time(const Text *text, int64_t *found) noexcept nogil:
    """Read milliseconds since the epoch. Return false if they are not valid."""
    cdef int64_t i, n = 0
    for i in range(text.size):
        if not 48 <= text.data[i] <= 57 or n > _MOST_TIMESTAMP // 10:
            return False
        n = 10 * n + text.data[i] - 48
    found[0] = n
    return text.size > 0 and n <= _MOST_TIMESTAMP


cdef LineFault put_line_headers(LineFormat format, Lines lines, Text rest,
                                Span *span) noexcept nogil:
    """Encode the headers of every line and those of this one, ``NAME:VALUE,NAME:VALUE``."""
    cdef const uint8_t *colon
    cdef uint8_t *p
    cdef int64_t i, count = rest.size > 0
    cdef Text one, name
    cdef Text comma = Text(<const uint8_t *>",", 1)
    for i in range(rest.size):
        count += rest.data[i] == 44
    span.start = lines.n_headers
    span.size = 0
    if not count + format.n_headers:
        return _FINE
    # An encoded header has two lengths of at most 5 bytes in place of the colon and the comma.
    p = room_for_headers(lines, 10 + format.headers.size + max(rest.size, 0) + 10 * count)
    if p == NULL:
        return _NO_SPACE
    p = put_varint(p, count + format.n_headers)
    p = put_bytes(p, format.headers.data, format.headers.size)
    for i in range(count):
        if not cut_before(&rest, &comma, &one):
            one = rest
        colon = find_text(one.data, one.data + one.size, <const uint8_t *>":", 1)
        if colon == NULL or colon == one.data:
            return _NO_HEADER
        name = Text(one.data, colon - one.data)
        if not is_utf8(name.data, name.size):
            return _NO_UTF8
        one = Text(colon + 1, one.size - name.size - 1)
        if is_null_text(format, one):
            one.size = -1
        p = put_bytes(put_varint(p, name.size), name.data, name.size)
        p = put_bytes(put_varint(p, one.size), one.data, one.size)
    span.size = p - lines.headers - span.start
    lines.n_headers += span.size
    return _FINE


cdef uint8_t *room_for_headers(Lines lines, int64_t size) noexcept nogil:
    """Return memory for *size* more bytes of encoded headers, or NULL."""
    cdef void *larger
    cdef int64_t room = lines.n_headers + size
    if room > lines.headers_room:
        room = max(2 * room, <int64_t>_FIRST_BLOCK)
        larger = realloc(lines.headers, room)
        if larger == NULL:
            return NULL
        lines.headers = <uint8_t *>larger
        lines.headers_room = room
    return lines.headers + lines.n_headers
