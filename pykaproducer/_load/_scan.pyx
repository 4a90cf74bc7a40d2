# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, binding=True, embedsignature=False, auto_pickle=False
# cython: freethreading_compatible=True
"""The scan of text, in C: JSON Lines and CSV are checked, and cut into columns of text.

A block of text is whole lines, and ends with a line end. So no loop has to look for the end of the
block: each stops at a line end at the latest, except inside a quoted cell. Bytes are compared eight
at a time in strings and cells.

Nothing is converted. A member of a JSON object becomes the text that it has in its line, a CSV cell
the text without its quotes. A column is three buffers as Arrow lays them out for ``large_string``.
The way back is here as well: columns of text become a JSON object for each row.

The GIL is released for each block. A scan is for one thread at a time.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy, memmove, memset

cdef extern from *:
    """
    static inline uint64_t scan_load(const uint8_t *p) { uint64_t w; memcpy(&w, p, 8); return w; }
    #define SCAN_ONES 0x0101010101010101ULL
    #define SCAN_HIGH 0x8080808080808080ULL
    /* High bit of each byte that is zero; above the first such byte, others may be set, too. */
    #define SCAN_ZERO(w) (((w) - SCAN_ONES) & ~(w) & SCAN_HIGH)
    #define SCAN_IS(w, byte) SCAN_ZERO((w) ^ (SCAN_ONES * (uint64_t)(byte)))
    static inline uint64_t scan_string(const uint8_t *p) {
        uint64_t w = scan_load(p);
        uint64_t found = ((w - SCAN_ONES * 0x20) & ~w) | SCAN_IS(w, '"') | SCAN_IS(w, '\\\\');
        return (found | w) & SCAN_HIGH;
    }
    static inline uint64_t scan_quoted(const uint8_t *p) {
        uint64_t w = scan_load(p);
        return (w | SCAN_ZERO(w) | SCAN_IS(w, '"')) & SCAN_HIGH;
    }
    /* All below 0x10 (line ends and NUL, but the tab as well) stop it. */
    static inline uint64_t scan_cell(const uint8_t *p, uint8_t delimiter) {
        uint64_t w = scan_load(p);
        uint64_t found = ((w - SCAN_ONES * 0x10) & ~w) | SCAN_IS(w, delimiter) | SCAN_IS(w, '"');
        return (found | w) & SCAN_HIGH;
    }
    /* As memcmp() == 0. Most names are short, and the call would take longer. */
    static inline int scan_same(const uint8_t *a, const uint8_t *b, int64_t size) {
        int64_t i = 0;
        if (size < 8) {
            for (; i < size; i++) if (a[i] != b[i]) return 0;
            return 1;
        }
        for (; i + 8 <= size; i += 8) if (scan_load(a + i) != scan_load(b + i)) return 0;
        return scan_load(a + size - 8) == scan_load(b + size - 8);
    }
    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    #define scan_first(found) (__builtin_ctzll(found) >> 3)
    #else
    #define scan_first(found) 0  /* the loops look at the bytes one after the other then */
    #endif
    """
    uint64_t scan_string(const uint8_t *p) noexcept nogil
    uint64_t scan_quoted(const uint8_t *p) noexcept nogil
    bint scan_same(const uint8_t *a, const uint8_t *b, int64_t size) noexcept nogil
    uint64_t scan_cell(const uint8_t *p, uint8_t delimiter) noexcept nogil
    int scan_first(uint64_t found) noexcept nogil
    int scan_bits "__builtin_popcount"(unsigned int byte) noexcept nogil

#: Maximum depth of nested objects and arrays.
MOST_DEPTH = 200
cdef enum:
    DEPTH = 200
    #: Names kept in a tree (of which those of columns are never dropped).
    NAMES = 1 << 16
    #: Names that a line may add to that.
    MOST_NAMES = 1 << 20
    ROOT = 0
    #: Values of Node.column besides a column's number: no column; not known; refused.
    PLAIN = -1
    REFUSED = -2

cdef enum Wrong:
    OK
    NO_MEMORY
    NOT_OBJECT
    REST
    VALUE
    NUMBER
    NAME
    COLON
    SEPARATOR
    TOO_DEEP
    CONTROL
    ESCAPE
    SURROGATE
    UTF8
    ENDS
    TWICE
    MEMBER_REFUSED
    MEMBER_UNKNOWN
    MEMBER_MISSING
    MEMBERS
    NUL
    UNCLOSED
    BEHIND_QUOTE
    TOO_MANY
    TOO_FEW
    BLANK

_REASONS = {
    NOT_OBJECT: "the line is not a JSON object",
    REST: "there is more text after the object",
    VALUE: "a JSON value was expected",
    NUMBER: "this is not a JSON number",
    NAME: "the name of a member, in quotation marks, was expected",
    COLON: "a colon was expected",
    SEPARATOR: "a comma or the end of the object or array was expected",
    TOO_DEEP: f"objects and arrays are nested more than {MOST_DEPTH} deep",
    CONTROL: "a control character in a string; JSON requires an escape",
    ESCAPE: "this is not an escape of JSON",
    SURROGATE: "an escaped surrogate without its other half is no character",
    UTF8: "the text is not UTF-8 (--encoding reads others)",
    ENDS: "the line ends inside of the object",
    TWICE: "the object has two members {name!r}",
    MEMBER_REFUSED: "the line has a member {name!r}",
    MEMBER_UNKNOWN: "the member {name!r} was not there before: the file has changed",
    MEMBER_MISSING: "the line has no member {name!r}",
    MEMBERS: "the line has more than {most:,} different members",
    NUL: "a NUL byte (--encoding reads UTF-16)",
    UNCLOSED: "a quotation mark opens here and is never closed",
    BEHIND_QUOTE: "text after the closing quotation mark of a cell",
    TOO_MANY: "the row has more cells than the header ({most:,})",
    TOO_FEW: "the number of cells is {found:,}, but {most:,} in the header",
    BLANK: "the line is empty, but the number of cells is {most:,} in the header",
}


class ScanError(ValueError):
    """Text is not what it should be.

    ``line`` is the index of the line in all text scanned so far, ``byte`` an index in this line.
    ``member`` is the name that the error is about, or None. All indices begin at 0.
    """

    def __init__(self, reason: str, line: int, byte: int, member: str | None = None) -> None:
        super().__init__(reason)
        self.line = line
        self.byte = byte
        self.member = member


# Memory ------------------------------------------------------------------------------------------


@cython.final
cdef class Memory:
    """Memory of C as a read-only buffer of Python."""

    cdef void *data
    cdef Py_ssize_t size

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.data, self.size, 1, flags)

    def __dealloc__(self):
        free(self.data)


@cython.final
cdef class _View:
    """The memory of an object, for as long as this exists."""

    cdef Py_buffer view
    cdef const uint8_t *data
    cdef Py_ssize_t size

    def __cinit__(self, source):
        PyObject_GetBuffer(source, &self.view, PyBUF_SIMPLE)
        self.data = <const uint8_t *>self.view.buf
        self.size = self.view.len

    def __dealloc__(self):
        PyBuffer_Release(&self.view)

    cdef const uint8_t *block(self, int64_t start, int64_t end, uint8_t other_end) except NULL:
        """Return where a block begins. Unless it is empty, it must end with a line end."""
        if not 0 <= start <= end <= self.size:
            raise IndexError("the block is not within the buffer")
        if end > start and self.data[end - 1] != c"\n" and self.data[end - 1] != other_end:
            raise ValueError("the block does not end with a line end")
        return self.data + start


@cython.final
cdef class Texts:
    """The buffers of a column of ``large_string`` or ``large_binary`` of Arrow."""

    cdef _View valid, offsets, data

    def __cinit__(self, valid, offsets, data):
        self.valid = None if valid is None else _View(valid)
        # A column without cells may lack them.
        self.offsets = _View(b"" if offsets is None else offsets)
        self.data = _View(b"" if data is None else data)

    cdef const uint8_t *cell(self, int64_t row, int64_t *size):
        """Return a cell and its size, or NULL for null. An empty cell is no JSON, and so null."""
        cdef const int64_t *places = <const int64_t *>self.offsets.data + row
        size[0] = places[1] - places[0]
        if size[0] == 0 or not (
            self.valid is None or self.valid.data[row >> 3] >> (row & 7) & 1
        ):
            return NULL
        return self.data.data + places[0]


cdef Memory _owned(void *data, Py_ssize_t size):
    """Return the memory that *data* points to, which must not be NULL."""
    cdef Memory memory = Memory.__new__(Memory)
    memory.data = data
    memory.size = size
    return memory


cdef struct Cells:
    # A column that grows.
    uint8_t *data
    int64_t room
    int64_t *offsets  # the last of them is the size of the data
    uint8_t *valid
    #: The text of the row that is scanned, of which row it is (JSON).
    const uint8_t *start
    const uint8_t *end
    uint64_t row


cdef bint _begin(Cells *cells, int64_t rows) noexcept nogil:
    cells.data = <uint8_t *>malloc(64)
    cells.room = 64
    cells.offsets = <int64_t *>malloc((rows + 1) * sizeof(int64_t))
    cells.valid = <uint8_t *>calloc(rows // 8 + 1, 1)
    cells.row = 0
    if cells.data == NULL or cells.offsets == NULL or cells.valid == NULL:
        return False
    cells.offsets[0] = 0
    return True


cdef void _free(Cells *cells) noexcept nogil:
    free(cells.data)
    free(cells.offsets)
    free(cells.valid)
    cells.data = cells.valid = NULL
    cells.offsets = NULL


cdef uint8_t *_space(Cells *cells, int64_t size, int64_t more) noexcept nogil:
    """Return where *more* bytes can be written behind *size* bytes, or NULL."""
    cdef uint8_t *data
    cdef int64_t room
    if size + more > cells.room:
        room = (size + more) * 2
        data = <uint8_t *>realloc(cells.data, room)
        if data == NULL:
            return NULL
        cells.data, cells.room = data, room
    return cells.data + size


cdef inline bint _append(Cells *cells, int64_t row, const uint8_t *start,
                         int64_t size) noexcept nogil:
    cdef uint8_t *to = _space(cells, cells.offsets[row], size)
    if to == NULL:
        return False
    memcpy(to, start, size)
    cells.offsets[row + 1] = cells.offsets[row] + size
    cells.valid[row >> 3] |= 1 << (row & 7)
    return True


cdef inline void _append_null(Cells *cells, int64_t row) noexcept nogil:
    cells.offsets[row + 1] = cells.offsets[row]


cdef int64_t _nulls(Cells *cells, int64_t rows) noexcept nogil:
    cdef int64_t row
    cdef int64_t count = rows
    cdef uint8_t byte
    for row in range(rows >> 3):
        byte = cells.valid[row]
        count -= 8 if byte == 0xFF else scan_bits(byte)
    for row in range(rows & ~7, rows):
        count -= cells.valid[row >> 3] >> (row & 7) & 1
    return count


cdef tuple _taken(Cells *cells, int64_t rows):
    """Return the column as (number of nulls, validity, offsets, data), and let it go."""
    found = (
        _nulls(cells, rows),
        _owned(cells.valid, (rows + 7) // 8),
        _owned(cells.offsets, (rows + 1) * sizeof(int64_t)),
        _owned(cells.data, cells.offsets[rows]),
    )
    cells.data = cells.valid = NULL
    cells.offsets = NULL
    return found


@cython.final
cdef class _Columns:
    """The columns that a call fills."""

    cdef Cells *cells
    cdef int64_t count
    cdef int64_t rows

    def __cinit__(self, int64_t count, int64_t most_rows):
        cdef int64_t place
        self.cells = <Cells *>calloc(count + 1, sizeof(Cells))
        if self.cells == NULL:
            raise MemoryError
        self.count = count
        for place in range(count):
            if not _begin(&self.cells[place], most_rows):
                raise MemoryError

    def __dealloc__(self):
        cdef int64_t place
        if self.cells != NULL:
            for place in range(self.count):
                _free(&self.cells[place])
        free(self.cells)

    cdef list taken(self):
        cdef list found = []
        cdef int64_t place
        for place in range(self.count):
            found.append(_taken(&self.cells[place], self.rows))
        return found


# Bytes -------------------------------------------------------------------------------------------


cdef inline const uint8_t *_skip(const uint8_t *p) noexcept nogil:
    """Skip white space of JSON inside of a line."""
    while p[0] == c" " or p[0] == c"\t" or p[0] == c"\r":
        p += 1
    return p


cdef inline const uint8_t *_character(const uint8_t *p) noexcept nogil:
    """Return the end of a character of several bytes, or NULL if it is not UTF-8."""
    cdef uint8_t first = p[0]
    if first < 0xC2 or first > 0xF4 or (p[1] & 0xC0) != 0x80:
        return NULL
    if first < 0xE0:
        return p + 2
    if (p[2] & 0xC0) != 0x80:
        return NULL
    if first < 0xF0:
        if (first == 0xE0 and p[1] < 0xA0) or (first == 0xED and p[1] > 0x9F):
            return NULL
        return p + 3
    if (p[3] & 0xC0) != 0x80 or (first == 0xF0 and p[1] < 0x90) or (first == 0xF4 and p[1] > 0x8F):
        return NULL
    return p + 4


cdef int32_t _four_digits(const uint8_t *p) noexcept nogil:
    """Return the value of four hexadecimal digits, or -1."""
    cdef int32_t value = 0
    cdef int place
    cdef uint8_t byte
    for place in range(4):
        byte = p[place]
        if c"0" <= byte <= c"9":
            value = value * 16 + byte - c"0"
        elif c"a" <= (byte | 32) <= c"f":
            value = value * 16 + (byte | 32) - c"a" + 10
        else:
            return -1
    return value


cdef int64_t _unescape(uint8_t *to, const uint8_t *p, const uint8_t *end) noexcept nogil:
    """Write the text of a checked JSON string, without its marks; return the size (never more)."""
    cdef uint8_t *begin = to
    cdef const uint8_t *found
    cdef int32_t code
    while True:
        found = <const uint8_t *>memchr(p, c"\\", end - p)
        if found == NULL:
            memcpy(to, p, end - p)
            return to + (end - p) - begin
        memcpy(to, p, found - p)
        to += found - p
        p = found + 2
        if found[1] != c"u":
            to[0] = _plain_escape(found[1])
            to += 1
            continue
        code = _four_digits(p)
        p += 4
        if 0xD800 <= code < 0xDC00:
            code = 0x10000 + ((code - 0xD800) << 10) + _four_digits(p + 2) - 0xDC00
            p += 6
        to = _write_character(to, code)


cdef inline uint8_t _plain_escape(uint8_t byte) noexcept nogil:
    if byte == c"b":
        return 8
    if byte == c"f":
        return 12
    if byte == c"n":
        return 10
    if byte == c"r":
        return 13
    return 9 if byte == c"t" else byte


cdef uint8_t *_write_character(uint8_t *to, int32_t code) noexcept nogil:
    if code < 0x80:
        to[0] = code
        return to + 1
    if code < 0x800:
        to[0] = 0xC0 | (code >> 6)
    else:
        if code < 0x10000:
            to[0] = 0xE0 | (code >> 12)
        else:
            to[0] = 0xF0 | (code >> 18)
            to += 1
            to[0] = 0x80 | ((code >> 12) & 0x3F)
        to += 1
        to[0] = 0x80 | ((code >> 6) & 0x3F)
    to[1] = 0x80 | (code & 0x3F)
    return to + 2


include "_scan_parts/names.pxi"
include "_scan_parts/json.pxi"
include "_scan_parts/csv.pxi"
include "_scan_parts/write.pxi"
