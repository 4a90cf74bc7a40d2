# CSV: RFC 4180, and any of CRLF, LF and CR as line end. A quotation mark that is not the first
# character of its cell is text.

@cython.final
cdef class CsvScan:
    """A scan of CSV. See ``_scan.pyi``."""

    cdef readonly int64_t line
    #: Number of cells of the row that was scanned last.
    cdef readonly int64_t found
    cdef uint8_t delimiter
    cdef int64_t count  # of cells that each row must have; 0: any number
    cdef int64_t wanted
    cdef int64_t *places  # the column of each cell, or -1
    cdef const uint8_t *end
    cdef int64_t more_lines  # within the cells of the row
    cdef Wrong wrong
    cdef const uint8_t *at

    def __init__(self, str delimiter, int64_t count=0, wanted=()):
        self.delimiter = ord(delimiter)
        self.count = count
        self.wanted = len(wanted)
        self.places = <int64_t *>malloc((count + 1) * sizeof(int64_t))
        if self.places == NULL:
            raise MemoryError
        memset(self.places, 0xFF, (count + 1) * sizeof(int64_t))
        for column, cell in enumerate(wanted):
            self.places[<int64_t>cell] = column

    def __dealloc__(self):
        free(self.places)

    def columns(self, block, int64_t start, int64_t end, int64_t most_rows, bint last):
        """Check rows and return their cells as columns."""
        cdef _Columns columns = _Columns.__new__(_Columns, self.wanted, most_rows)
        cdef _View view = _View(block)
        cdef const uint8_t *p
        cdef const uint8_t *begin
        begin = p = view.block(start, end, c"\r")
        self.end = view.data + end
        self.wrong = OK
        with nogil:
            while columns.rows < most_rows and p != self.end:
                p = self._row(begin, columns)
                if p == NULL:
                    break
                begin = p
                self.line += 1 + self.more_lines
                columns.rows += 1
        # Without its end, a quoted cell may be longer than the block.
        if p == NULL and (last or self.wrong != UNCLOSED):
            self._raise(view.data + start)
        start = begin - view.data
        return start, columns.rows, columns.taken()

    cdef const uint8_t *_row(self, const uint8_t *p, _Columns columns) noexcept nogil:
        """Scan the row that begins at *p*; return where the next one begins, or NULL."""
        cdef const uint8_t *begin = p
        cdef int64_t cell = 0
        cdef int64_t column
        cdef Cells *cells
        self.more_lines = 0
        while True:
            if cell >= self.count > 0:
                return self._fail(p, TOO_MANY)
            column = self.places[cell] if self.count > 0 else -1
            cells = NULL if column < 0 else &columns.cells[column]
            if p[0] == c'"':
                p = self._quoted(p, cells, columns.rows)
            else:
                p = self._bare(p, cells, columns.rows)
            if p == NULL:
                return NULL
            cell += 1
            if p[0] != self.delimiter:
                break
            p += 1
        self.found = cell
        if cell < self.count:
            return self._fail(begin, BLANK if p == begin else TOO_FEW)
        if p[0] == c"\r" and p + 1 != self.end and p[1] == c"\n":
            return p + 2
        return p + 1

    cdef inline const uint8_t *_bare(self, const uint8_t *p, Cells *cells,
                                     int64_t row) noexcept nogil:
        """Scan a cell without quotation marks; return its end."""
        cdef const uint8_t *begin = p
        cdef const uint8_t *last = self.end - 8
        cdef const uint8_t *found
        cdef uint64_t special
        while True:
            while p <= last:
                special = scan_cell(p, self.delimiter)
                if special:
                    p += scan_first(special)
                    break
                p += 8
            if p[0] == self.delimiter or p[0] == c"\n" or p[0] == c"\r":
                break
            found = p
            if p[0] >= 0x80:
                p = _character(p)
                if p == NULL:
                    return self._fail(found, UTF8)
            elif p[0] == 0:
                return self._fail(p, NUL)
            else:
                p += 1
        if cells != NULL:
            if p == begin:
                _append_null(cells, row)
            elif not _append(cells, row, begin, p - begin):
                return self._fail(p, NO_MEMORY)
        return p

    cdef const uint8_t *_quoted(self, const uint8_t *p, Cells *cells, int64_t row) noexcept nogil:
        """Scan a cell in quotation marks; return what follows it."""
        cdef const uint8_t *begin = p
        cdef const uint8_t *part
        cdef int64_t size = 0
        cdef uint8_t *to
        p += 1
        while True:
            part = p
            p = self._quote(p, begin)
            if p == NULL:
                return NULL
            if cells != NULL:
                to = _space(cells, cells.offsets[row] + size, p - part + 1)
                if to == NULL:
                    return self._fail(p, NO_MEMORY)
                memcpy(to, part, p - part + 1)
                size += p - part + (p[1] == c'"')
            self.more_lines += _line_ends(part, p)
            p += 1
            if p[0] != c'"':
                break
            p += 1
        if p[0] != self.delimiter and p[0] != c"\n" and p[0] != c"\r":
            return self._fail(p, NUL if p[0] == 0 else BEHIND_QUOTE)
        if cells != NULL:
            cells.offsets[row + 1] = cells.offsets[row] + size
            cells.valid[row >> 3] |= 1 << (row & 7)
        return p

    cdef inline const uint8_t *_quote(self, const uint8_t *p, const uint8_t *begin) noexcept nogil:
        """Return the next quotation mark; *begin*: of the cell."""
        cdef const uint8_t *found
        cdef uint64_t special
        while p < self.end:
            if p + 8 <= self.end:
                special = scan_quoted(p)
                if special == 0:
                    p += 8
                    continue
                p += scan_first(special)
            if p[0] == c'"':
                return p
            found = p
            if p[0] >= 0x80:
                p = _character(p)
                if p == NULL:
                    return self._fail(found, UTF8)
            elif p[0] == 0:
                return self._fail(p, NUL)
            else:
                p += 1
        return self._fail(begin, UNCLOSED)

    cdef const uint8_t *_fail(self, const uint8_t *at, Wrong wrong) noexcept nogil:
        self.wrong = wrong
        self.at = at
        return NULL

    cdef object _raise(self, const uint8_t *begin):
        """Raise the error for what is wrong in the text that begins at *begin*."""
        cdef const uint8_t *p = self.at
        cdef int64_t line = self.line
        if self.wrong == NO_MEMORY:
            raise MemoryError
        while p > begin and (p - 1)[0] != c"\n" and (p - 1)[0] != c"\r":
            p -= 1
        line += self.more_lines if self.wrong != BLANK and self.wrong != TOO_FEW else 0
        reason = _REASONS[self.wrong].format(most=self.count, found=self.found)
        raise ScanError(reason, line, self.at - p, None)


cdef int64_t _line_ends(const uint8_t *p, const uint8_t *end) noexcept nogil:
    """Return the number of line ends: CRLF, LF and CR."""
    cdef int64_t count = 0
    while p < end:
        if p[0] == c"\n" or (p[0] == c"\r" and p[1] != c"\n"):
            count += 1
        p += 1
    return count
