# Members of JSON objects: columns of text become one text a row.

cdef extern from *:
    void prefetch "__builtin_prefetch"(const void *place) nogil

#: How many members before a cell is written it is fetched.
cdef enum:
    _AHEAD = 8

cdef enum Form:
    FORM_VERBATIM
    FORM_QUOTED
    FORM_STRING
    FORM_BASE64
    FORM_FLOAT

VERBATIM = FORM_VERBATIM
QUOTED = FORM_QUOTED
STRING = FORM_STRING
BASE64 = FORM_BASE64
FLOAT = FORM_FLOAT

cdef const uint8_t *_DIGITS_64 = (
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
)
cdef const uint8_t *_DIGITS_16 = b"0123456789abcdef"


cdef struct Member:
    # A column, and the text before each of its cells.
    const uint8_t *before
    int64_t before_size
    Form form
    const uint8_t *valid
    const int64_t *offsets
    const uint8_t *data
    int64_t first


@cython.final
cdef class _Members:
    cdef Member *all
    cdef int64_t count

    def __cinit__(self, list members):
        cdef int64_t place
        cdef bytes before
        cdef Texts texts
        self.count = len(members)
        self.all = <Member *>calloc(self.count + 2 * _AHEAD, sizeof(Member))
        if self.all == NULL:
            raise MemoryError
        for place in range(self.count):
            before, form, texts, first = members[place]
            self.all[place] = Member(
                <const uint8_t *><char *>before, len(before), form, NULL,
                <const int64_t *>texts.offsets.data, texts.data.data, first,
            )
            if texts.valid is not None:
                self.all[place].valid = texts.valid.data

    def __dealloc__(self):
        free(self.all)


def write_rows(list members, bytes end, int64_t rows):
    """Return a column of text."""
    cdef _Members found = _Members.__new__(_Members, members)
    cdef _Columns columns = _Columns.__new__(_Columns, 1, rows)
    cdef Cells *cells = columns.cells
    cdef const uint8_t *last = <const uint8_t *><char *>end
    cdef int64_t last_size = len(end)
    cdef int64_t row = 0
    cdef int64_t size = 0
    cdef int64_t place
    cdef uint8_t *to
    with nogil:
        memset(cells.valid, 0xFF, rows // 8 + 1)
        while row < rows:
            for place in range(found.count):
                _fetch(&found.all[place], row)
                size = _write(cells, size, &found.all[place], row)
                if size < 0:
                    break
            if size < 0:
                break
            to = _space(cells, size, last_size)
            if to == NULL:
                size = -1
                break
            memcpy(to, last, last_size)
            size += last_size
            row += 1
            cells.offsets[row] = size
    if size == -1:
        raise MemoryError
    if size < 0:
        raise ValueError("the text is not UTF-8; repair it where it was written")
    columns.rows = rows
    return columns.taken()[0]


cdef inline void _fetch(const Member *member, int64_t row) noexcept nogil:
    """Have the processor load the cells of members to come: a row of many is in no cache."""
    cdef const Member *near = member + _AHEAD
    cdef const Member *far = member + 2 * _AHEAD
    if far.offsets != NULL:
        prefetch(far.offsets + far.first + row)
    if near.offsets != NULL:
        prefetch(near.data + near.offsets[near.first + row])


cdef int64_t _write(Cells *cells, int64_t size, const Member *member, int64_t row) noexcept nogil:
    """Write a cell behind *size* bytes; return the new size, -1 without memory, -2 if not UTF-8."""
    cdef Form form = member.form
    cdef int64_t begin, length, need
    cdef const uint8_t *p
    cdef uint8_t *to
    row += member.first
    begin = member.offsets[row]
    p = member.data + begin
    need = length = member.offsets[row + 1] - begin
    if member.valid != NULL and not member.valid[row >> 3] >> (row & 7) & 1:
        form, p, need, length = FORM_VERBATIM, b"null", 4, 4
    elif form == FORM_STRING:
        need = _escaped_size(p, length)
        if need < 0:
            return -2
    elif form == FORM_BASE64:
        need = (length + 2) // 3 * 4
    to = _space(cells, size, member.before_size + need + 2)
    if to == NULL:
        return -1
    memcpy(to, member.before, member.before_size)
    to += member.before_size
    size += member.before_size + need
    if form == FORM_VERBATIM:
        memcpy(to, p, length)
        return size
    if form == FORM_FLOAT:
        return size - need + _write_float(to, p, length)
    to[0] = c'"'
    if form == FORM_BASE64:
        _write_base64(to + 1, p, length)
    elif need == length:
        memcpy(to + 1, p, length)
    else:
        _write_escaped(to + 1, p, length)
    to[need + 1] = c'"'
    return size + 2


cdef int64_t _write_float(uint8_t *to, const uint8_t *p, int64_t length) noexcept nogil:
    cdef int64_t place
    if p[length - 1] == c"n" or p[length - 1] == c"f":  # nan, inf
        memcpy(to, b"null", 4)
        return 4
    memcpy(to, p, length)
    for place in range(p[0] == c"-", length):
        if not _is_digit(p[place]):
            return length
    memcpy(to + length, b".0", 2)
    return length + 2


cdef int64_t _escaped_size(const uint8_t *p, int64_t length) noexcept nogil:
    """Return the size of text with escapes, or -1 if it is not UTF-8."""
    cdef const uint8_t *end = p + length
    cdef const uint8_t *behind
    cdef int64_t size = length
    while p < end:
        if end - p >= 8 and not scan_string(p):
            p += 8
        elif p[0] >= 0x80:
            behind = _character_before(p, end)
            if behind == NULL:
                return -1
            p = behind
        else:
            size += _escape_size(p[0]) - 1
            p += 1
    return size


cdef inline const uint8_t *_character_before(const uint8_t *p, const uint8_t *end) noexcept nogil:
    """As _character(), for text that something else may follow."""
    cdef uint8_t few[4]
    cdef const uint8_t *found
    if end - p >= 4:
        return _character(p)
    memset(few, 0, 4)
    memcpy(few, p, end - p)
    found = _character(few)
    if found != NULL:
        found = p + (found - <const uint8_t *>few)
    return found


cdef inline int _escape_size(uint8_t byte) noexcept nogil:
    if byte == c'"' or byte == c"\\":
        return 2
    if byte >= 0x20:
        return 1
    return 2 if _short_escape(byte) else 6


cdef inline uint8_t _short_escape(uint8_t byte) noexcept nogil:
    """Return the letter that stands for a control character, or 0."""
    if byte == 8:
        return c"b"
    if byte == 9:
        return c"t"
    if byte == 10:
        return c"n"
    if byte == 12:
        return c"f"
    return c"r" if byte == 13 else 0


cdef void _write_escaped(uint8_t *to, const uint8_t *p, int64_t length) noexcept nogil:
    cdef const uint8_t *end = p + length
    cdef uint8_t byte
    while p < end:
        byte = p[0]
        p += 1
        if byte >= 0x20 and byte != c'"' and byte != c"\\":
            to[0] = byte
            to += 1
            continue
        to[0] = c"\\"
        if byte >= 0x20:
            to[1] = byte
        else:
            to[1] = _short_escape(byte)
            if to[1] == 0:
                memcpy(to + 1, b"u00", 3)
                to[4] = _DIGITS_16[byte >> 4]
                to[5] = _DIGITS_16[byte & 15]
                to += 4
        to += 2


cdef void _write_base64(uint8_t *to, const uint8_t *p, int64_t length) noexcept nogil:
    cdef uint32_t bits
    while length > 0:
        bits = p[0] << 16 | (p[1] if length > 1 else 0) << 8 | (p[2] if length > 2 else 0)
        to[0] = _DIGITS_64[bits >> 18]
        to[1] = _DIGITS_64[bits >> 12 & 63]
        to[2] = _DIGITS_64[bits >> 6 & 63] if length > 1 else c"="
        to[3] = _DIGITS_64[bits & 63] if length > 2 else c"="
        to += 4
        p += 3
        length -= 3
