# JSON Lines: RFC 8259, strictly, one object in each line.

cdef struct Frame:
    # An object or array that is open.
    uint8_t closing
    bint direct
    int32_t node
    int32_t last  # the member met last, or -1
    uint64_t serial


@cython.final
cdef class JsonScan:
    """A scan of JSON Lines. See ``_scan.pyi``."""

    cdef readonly int64_t line
    cdef readonly bint nested
    cdef bint learning
    cdef _Names names
    cdef Frame frames[DEPTH + 1]
    cdef uint64_t serial
    cdef const uint8_t *end
    cdef uint8_t *scratch
    cdef int64_t scratch_room
    # Which columns are filled, where, and what each line must have.
    cdef Cells *cells
    cdef int64_t count
    cdef int32_t required
    cdef bint strict
    cdef int32_t node
    cdef const uint8_t *start
    # The error: its kind, its place and its member.
    cdef Wrong wrong
    cdef const uint8_t *at
    cdef int32_t member

    def __init__(self, columns=(), *, known=(), refused=(), required=None, bint strict=False):
        self.names = _Names.__new__(_Names)
        self.nested = True
        self.strict = strict
        self.required = -1
        for place, name in enumerate(columns):
            self._add(name, place)
        self.count = len(columns)
        for name in known:
            self._add(name, PLAIN)
        for name in refused:
            self._add(name, REFUSED)
        if required is not None:
            self.required = self._add(required, None)
        self.names.kept = self.names.count

    def __dealloc__(self):
        free(self.scratch)

    cdef int32_t _add(self, str name, column) except -1:
        cdef bytes text = name.encode()
        cdef int32_t node = self.names.find(ROOT, text, len(text), False)
        if node < 0:
            raise MemoryError
        if column is not None and self.names.nodes[node].column == PLAIN:
            self.names.nodes[node].column = column
        return node

    def lines(self, block, int64_t start, int64_t end, bytes suffix=b""):
        """Check lines and return them as one column."""
        cdef _Columns columns = _Columns.__new__(_Columns, 1, (end - start) // 3 + 1)
        cdef _View view = _View(block)
        cdef const uint8_t *p
        cdef const uint8_t *more = suffix
        cdef int64_t more_size = len(suffix)
        p = view.block(start, end, c"\n")
        self.end = view.data + end
        with nogil:
            if _space(columns.cells, 0, end - start) != NULL:
                p = self._lines(p, columns, more, more_size)
            else:
                p = self._fail(p, NO_MEMORY)
        if p == NULL:
            self._raise(view.data + start)
        return columns.rows, columns.taken()[0]

    cdef const uint8_t *_lines(self, const uint8_t *p, _Columns columns, const uint8_t *suffix,
                               int64_t suffix_size) noexcept nogil:
        cdef Cells *cells = columns.cells
        cdef const uint8_t *begin
        cdef const uint8_t *behind
        cdef uint8_t *to
        while True:
            begin = p
            p = self._line(p, &begin, &behind)
            if p == NULL or begin == NULL:
                return p
            if suffix_size == 0:
                behind = p - 1
                if (behind - 1)[0] == c"\r":
                    behind -= 1
                if not _append(cells, columns.rows, begin, behind - begin):
                    return self._fail(p, NO_MEMORY)
            else:
                to = _space(cells, cells.offsets[columns.rows], behind - begin + suffix_size + 1)
                if to == NULL:
                    return self._fail(p, NO_MEMORY)
                memcpy(to, begin, behind - begin - 1)
                to += behind - begin - 1
                if self.frames[0].last >= 0:
                    to[0] = c","
                    to += 1
                memcpy(to, suffix, suffix_size)
                to[suffix_size] = c"}"
                cells.offsets[columns.rows + 1] = to + suffix_size + 1 - cells.data
                cells.valid[columns.rows >> 3] |= 1 << (columns.rows & 7)
            columns.rows += 1

    def learn(self, block, int64_t start, int64_t end):
        """Check lines and add the names of their members; return the number of rows."""
        cdef _View view = _View(block)
        cdef const uint8_t *p
        cdef const uint8_t *begin
        cdef const uint8_t *behind
        cdef int64_t rows = 0
        self.learning = True
        p = view.block(start, end, c"\n")
        self.end = view.data + end
        with nogil:
            while True:
                begin = p
                p = self._line(p, &begin, &behind)
                if p == NULL or begin == NULL:
                    break
                rows += 1
        if p == NULL:
            self._raise(view.data + start)
        return rows

    def tree(self):
        """Return the names learnt, in the order of first appearance, as nested dictionaries."""
        cdef list found = []
        cdef int32_t place
        cdef Node *node
        for place in range(self.names.count):
            node = &self.names.nodes[place]
            found.append({})
            if place and node.direct and (self.nested or node.parent == ROOT):
                found[node.parent][self.names.name(place)] = found[place]
        return found[ROOT]

    def columns(self, block, int64_t start, int64_t end, int64_t most_rows):
        """Check lines and return their members as columns."""
        cdef _Columns columns = _Columns.__new__(_Columns, self.count, most_rows)
        cdef _View view = _View(block)
        cdef const uint8_t *p
        cdef const uint8_t *begin
        cdef const uint8_t *behind
        p = view.block(start, end, c"\n")
        self.end = view.data + end
        self.cells = columns.cells
        with nogil:
            while columns.rows < most_rows:
                begin = p
                p = self._line(p, &begin, &behind)
                if p == NULL or begin == NULL:
                    break
                if not self._emit(columns):
                    p = self._fail(begin, NO_MEMORY)
                    break
        if p == NULL:
            self._raise(view.data + start)
        start = p - view.data
        self.cells = NULL
        return start, columns.rows, columns.taken()

    def members(self, valid, offsets, data, int64_t first, int64_t rows):
        """Return the members of objects that are cells of a column, as columns.

        A cell that is not an object is not an error here: its row is in the list returned last.
        """
        cdef _Columns columns = _Columns.__new__(_Columns, self.count, rows)
        cdef Texts texts = Texts(valid, offsets, data)
        cdef const uint8_t *p
        cdef list others = []
        cdef int64_t row, size, column
        self.cells = columns.cells
        for row in range(rows):
            p = texts.cell(first + row, &size)
            if p == NULL:
                for column in range(self.count):
                    _append_null(&columns.cells[column], row)
                columns.rows += 1
                continue
            self._reserve(size + 1)
            memcpy(self.scratch, p, size)
            self.scratch[size] = c"\n"
            self.end = self.scratch + size + 1
            if _skip(self.scratch)[0] != c"{":
                others.append(row)
                self._open(0, c"{")
            elif self._object(_skip(self.scratch)) == NULL:
                self._raise(self.scratch)
            elif self.names.count > NAMES + self.names.kept:
                self._cut()
            if not self._emit(columns):
                raise MemoryError
        self.cells = NULL
        return columns.taken(), others

    def texts(self, valid, offsets, data, int64_t first, int64_t rows, bint only_strings=False):
        """Return the text of JSON texts that are cells of a column, and the first without one."""
        cdef _Columns columns = _Columns.__new__(_Columns, 1, rows)
        cdef Cells *cells = columns.cells
        cdef Texts texts = Texts(valid, offsets, data)
        cdef const uint8_t *p
        cdef uint8_t *to
        cdef int64_t row, size
        for row in range(rows):
            p = texts.cell(first + row, &size)
            if p == NULL:
                _append_null(cells, row)
                continue
            if p[0] == c"{" or p[0] == c"[" or (only_strings and p[0] != c'"'):
                return None, row
            to = _space(cells, cells.offsets[row], size)
            if to == NULL:
                raise MemoryError
            if p[0] == c'"':
                size = self._text(to, p, size)
            else:
                memcpy(to, p, size)
            cells.offsets[row + 1] = cells.offsets[row] + size
            cells.valid[row >> 3] |= 1 << (row & 7)
        columns.rows = rows
        return columns.taken()[0], -1

    cdef int64_t _text(self, uint8_t *to, const uint8_t *p, int64_t size) except -1:
        """Write the text of the string that is at *p*, and return its size."""
        self._reserve(size + 1)
        memcpy(self.scratch, p, size)
        self.scratch[size] = c"\n"
        self.end = self.scratch + size + 1
        p = self._string(self.scratch + 1)
        if p == NULL:
            self._raise(self.scratch)
        return _unescape(to, self.scratch + 1, p - 1)

    cdef int _reserve(self, int64_t size) except -1:
        cdef void *new
        if size > self.scratch_room:
            new = realloc(self.scratch, size * 2)
            if new == NULL:
                raise MemoryError
            self.scratch = <uint8_t *>new
            self.scratch_room = size * 2
        return 0

    cdef bint _emit(self, _Columns columns) noexcept nogil:
        """Append the members of the object that was scanned last."""
        cdef int64_t column
        cdef Cells *cells
        for column in range(self.count):
            cells = &columns.cells[column]
            if cells.row != self.frames[0].serial or cells.start[0] == c"n":
                _append_null(cells, columns.rows)
            elif not _append(cells, columns.rows, cells.start, cells.end - cells.start):
                return False
        columns.rows += 1
        return True

    # A line ----------------------------------------------------------------------------------

    cdef const uint8_t *_line(self, const uint8_t *p, const uint8_t **begin,
                              const uint8_t **behind) noexcept nogil:
        """Scan the next line that is not blank; return where the one after it begins, or NULL.

        *begin* is where its text begins, or NULL at the end of the block, and *behind* what follows
        its object.
        """
        cdef const uint8_t *found
        while True:
            if p == self.end:
                begin[0] = NULL
                return p
            found = _skip(p)
            if found[0] != c"\n":
                break
            self.line += 1
            p = found + 1
        begin[0] = p
        if found[0] != c"{":
            return self._fail(found, UTF8 if found[0] >= 0x80 and _character(found) == NULL
                              else NOT_OBJECT)
        p = self._object(found)
        if p == NULL:
            return NULL
        behind[0] = p
        p = _skip(p)
        if p[0] != c"\n":
            return self._fail(p, REST)
        if self.required >= 0 and self.names.nodes[self.required].seen != self.frames[0].serial:
            self.member = self.required
            return self._fail(found, MEMBER_MISSING)
        self.line += 1
        if self.names.count > NAMES + self.names.kept:
            self._cut()
        return p + 1

    cdef void _cut(self) noexcept nogil:
        self.names.cut(self.learning)
        if self.learning:
            self.nested = False
            self.names.kept = self.names.count

    cdef const uint8_t *_object(self, const uint8_t *p) noexcept nogil:
        """Scan the object that begins at *p*, and return what follows it, or NULL."""
        cdef int depth = 0
        cdef Frame *frame = NULL
        cdef uint8_t byte
        while True:
            byte = p[0]
            if byte == c"{" or byte == c"[":
                if depth == DEPTH:
                    return self._fail(p, TOO_DEEP)
                frame = self._open(depth, byte)
                depth += 1
                p = _skip(p + 1)
                if p[0] != frame.closing:
                    if byte == c"{":
                        p = self._key(p, frame)
                        if p == NULL:
                            return NULL
                        if depth == 1:
                            self.start = p
                    continue
            else:
                p = self._scalar(p)
                if p == NULL:
                    return NULL
            while True:  # after a value, or in an object or array without any
                if depth == 1 and frame.last >= 0:
                    self._found(frame.last, p)
                p = _skip(p)
                if p[0] == frame.closing:
                    p += 1
                    depth -= 1
                    if depth == 0:
                        return p
                    frame = &self.frames[depth - 1]
                    continue
                if p[0] != c",":
                    return self._fail(p, SEPARATOR)
                p = _skip(p + 1)
                if frame.closing == c"}":
                    p = self._key(p, frame)
                    if p == NULL:
                        return NULL
                    if depth == 1:
                        self.start = p
                break

    cdef inline Frame *_open(self, int depth, uint8_t opening) noexcept nogil:
        cdef Frame *frame = &self.frames[depth]
        cdef Frame *above
        frame.closing = opening + 2  # in ASCII, for both
        frame.last = -1
        self.serial += 1
        frame.serial = self.serial
        if depth == 0:
            frame.node = ROOT
            frame.direct = True
        else:
            above = &self.frames[depth - 1]
            frame.node = above.last if above.closing == c"}" else above.node
            frame.direct = above.direct and above.closing == c"}" and opening == c"{"
        return frame

    cdef inline void _found(self, int32_t node, const uint8_t *p) noexcept nogil:
        """Keep where the value of a member of the line is."""
        cdef int32_t column = self.names.nodes[node].column
        if column >= 0 and self.cells != NULL:
            self.cells[column].start = self.start
            self.cells[column].end = p
            self.cells[column].row = self.frames[0].serial

    cdef const uint8_t *_key(self, const uint8_t *p, Frame *frame) noexcept nogil:
        """Scan the name that begins at *p* and the colon; return where the value begins."""
        cdef Node *nodes = self.names.nodes
        cdef int32_t last = frame.last
        cdef int32_t node = nodes[frame.node].first if last < 0 else nodes[last].follower
        cdef const uint8_t *at = p
        if p[0] != c'"':
            return self._fail(p, NAME)
        if (node >= 0 and nodes[node].raw and self.end - p > nodes[node].length + 2
                and p[nodes[node].length + 1] == c'"'
                and scan_same(p + 1, self.names.text + nodes[node].at, nodes[node].length)):
            p += nodes[node].length + 2
        else:
            p = self._string(p + 1)
            if p == NULL:
                return NULL
            node = self._node(frame, at + 1, p - 1)
            if node < 0:
                return self._fail(at, NO_MEMORY if self.names.count < MOST_NAMES else MEMBERS)
            nodes = self.names.nodes
            if frame.last < 0:
                nodes[frame.node].first = node
            else:
                nodes[frame.last].follower = node
        self.member = node
        if nodes[node].seen == frame.serial:
            return self._fail(at, TWICE)
        if frame == self.frames and nodes[node].column < 0:
            if nodes[node].column == REFUSED:
                return self._fail(at, MEMBER_REFUSED)
            if self.strict and node >= self.names.kept:
                return self._fail(at, MEMBER_UNKNOWN)
        nodes[node].seen = frame.serial
        nodes[node].direct |= frame.direct
        frame.last = node
        p = _skip(p)
        if p[0] != c":":
            return self._fail(p, COLON)
        return _skip(p + 1)

    cdef int32_t _node(self, Frame *frame, const uint8_t *name, const uint8_t *end) noexcept nogil:
        cdef uint8_t *text
        cdef int32_t node
        cdef int64_t size
        if memchr(name, c"\\", end - name) == NULL:
            return self.names.find(frame.node, name, end - name, True)
        text = <uint8_t *>malloc(end - name)
        if text == NULL:
            return -1
        size = _unescape(text, name, end)
        node = self.names.find(frame.node, text, size, False)
        free(text)
        return node

    # A value ---------------------------------------------------------------------------------

    cdef inline const uint8_t *_scalar(self, const uint8_t *p) noexcept nogil:
        cdef uint8_t byte = p[0]
        if byte == c'"':
            return self._string(p + 1)
        if byte == c"-" or c"0" <= byte <= c"9":
            return self._number(p)
        if byte == c"t" and self.end - p > 4 and memcmp(p, b"true", 4) == 0:
            return p + 4
        if byte == c"f" and self.end - p > 5 and memcmp(p, b"false", 5) == 0:
            return p + 5
        if byte == c"n" and self.end - p > 4 and memcmp(p, b"null", 4) == 0:
            return p + 4
        return self._fail(p, VALUE)

    cdef const uint8_t *_number(self, const uint8_t *p) noexcept nogil:
        cdef const uint8_t *begin = p
        if p[0] == c"-":
            p += 1
        if not _is_digit(p[0]):
            return self._fail(begin, NUMBER)
        if p[0] == c"0":
            p += 1
            if _is_digit(p[0]):
                return self._fail(begin, NUMBER)
        while _is_digit(p[0]):
            p += 1
        if p[0] == c".":
            p += 1
            if not _is_digit(p[0]):
                return self._fail(begin, NUMBER)
            while _is_digit(p[0]):
                p += 1
        if p[0] == c"e" or p[0] == c"E":
            p += 1
            if p[0] == c"+" or p[0] == c"-":
                p += 1
            if not _is_digit(p[0]):
                return self._fail(begin, NUMBER)
            while _is_digit(p[0]):
                p += 1
        return p

    cdef const uint8_t *_string(self, const uint8_t *p) noexcept nogil:
        """Scan the string whose text begins at *p*; return what follows it, or NULL."""
        cdef const uint8_t *last = self.end - 8
        cdef const uint8_t *found
        cdef uint64_t special
        while True:
            while p <= last:
                special = scan_string(p)
                if special:
                    p += scan_first(special)
                    break
                p += 8
            while p[0] >= 0x20 and p[0] < 0x80 and p[0] != c'"' and p[0] != c"\\":
                p += 1
            if p[0] == c'"':
                return p + 1
            found = p
            if p[0] == c"\\":
                p = self._escape(p)
            elif p[0] < 0x20:
                return self._fail(p, CONTROL)
            else:
                while p != NULL and p[0] >= 0x80:
                    found = p
                    p = _character(p)
                if p == NULL:
                    return self._fail(found, UTF8)
            if p == NULL:
                return NULL

    cdef const uint8_t *_escape(self, const uint8_t *p) noexcept nogil:
        cdef int32_t code
        if p[1] != c"u":
            if p[1] == c"\n" or memchr(b'"\\/bfnrt', p[1], 8) == NULL:
                return self._fail(p, ESCAPE)
            return p + 2
        code = _four_digits(p + 2)
        if code < 0:
            return self._fail(p, ESCAPE)
        if code < 0xD800 or code > 0xDFFF:
            return p + 6
        if code > 0xDBFF or p[6] != c"\\" or p[7] != c"u":
            return self._fail(p, SURROGATE)
        code = _four_digits(p + 8)
        if code < 0xDC00 or code > 0xDFFF:
            return self._fail(p, SURROGATE)
        return p + 12

    cdef const uint8_t *_fail(self, const uint8_t *at, Wrong wrong) noexcept nogil:
        self.wrong = wrong
        self.at = at
        return NULL

    cdef object _raise(self, const uint8_t *begin):
        """Raise the error for what is wrong in the text that begins at *begin*."""
        cdef const uint8_t *p = self.at
        cdef str member = None
        cdef Wrong wrong = self.wrong
        self.cells = NULL
        if wrong == NO_MEMORY:
            raise MemoryError
        if p[0] == c"\n" and wrong not in (MEMBER_MISSING, MEMBERS):
            wrong = ENDS
        elif p[0] == 0:
            wrong = NUL
        if wrong in (TWICE, MEMBER_REFUSED, MEMBER_UNKNOWN, MEMBER_MISSING):
            member = self.names.name(self.member)
        while p > begin and (p - 1)[0] != c"\n":
            p -= 1
        reason = _REASONS[wrong].format(name=member, most=MOST_NAMES)
        raise ScanError(reason, self.line, self.at - p, member)


cdef inline bint _is_digit(uint8_t byte) noexcept nogil:
    return c"0" <= byte <= c"9"
