# Numbers: columns of integers (partitions, timestamps), read in place.

cdef extern from *:
    """
    /* memcpy(), as an exporter need not align its buffers. It compiles to one instruction. */
    static inline int64_t int16_at(const void *p) { int16_t n; memcpy(&n, p, 2); return n; }
    static inline int64_t int32_at(const void *p) { int32_t n; memcpy(&n, p, 4); return n; }
    static inline int64_t int64_at(const void *p) { int64_t n; memcpy(&n, p, 8); return n; }
    """
    int64_t int16_at(const void *p) noexcept nogil
    int64_t int32_at(const void *p) noexcept nogil
    int64_t int64_at(const void *p) noexcept nogil

cdef struct Numbers:            # a column of integers
    bint there                  # whether the column exists
    const uint8_t *data
    int64_t offset, stride
    int width                   # bytes of one number
    bint signed
    const uint8_t *validity
    int64_t times, parts        # unit conversion: factor and divisor
    Numbers *dictionary         # Arrow's: the stored numbers are indices into this column
    int64_t count               # of a dictionary: its length

cdef enum Found:
    NO_NUMBER = -1              # invalid: beyond 64 bits, or not an index of the dictionary
    NULL_NUMBER = 0             # not given
    NUMBER = 1

cdef int64_t _MOST_PARTITION = 0x7fffffff
cdef int64_t _MOST_TIMESTAMP = 1 << 62
cdef int64_t _MOST_INT64 = 0x7fffffffffffffff
#: Up to this many numbers are checked with the GIL held: reacquiring it may take longer.
cdef int64_t _FEW_NUMBERS = 8192


cdef inline bint is_null(const uint8_t *validity, int64_t i) noexcept nogil:
    return validity != NULL and not validity[i >> 3] >> (i & 7) & 1


cdef int64_t stored_number(const Numbers *numbers, int64_t i) noexcept nogil:
    """Return number *i* as stored. An unsigned 64-bit number may be returned as negative."""
    cdef const uint8_t *p = numbers.data + (i + numbers.offset) * numbers.stride
    if numbers.width == 1:
        return (<const int8_t *>p)[0] if numbers.signed else p[0]
    if numbers.width == 2:
        return int16_at(p) if numbers.signed else <uint16_t>int16_at(p)
    if numbers.width == 4:
        return int32_at(p) if numbers.signed else <uint32_t>int32_at(p)
    return int64_at(p)


cdef Found find_number(const Numbers *numbers, int64_t i, int64_t *found) noexcept nogil:
    """Look up number *i* and convert it to the target unit, rounded down."""
    cdef int64_t n
    if not numbers.there or is_null(numbers.validity, i + numbers.offset):
        return NULL_NUMBER                  # not there: a dictionary of Arrow's null type
    n = stored_number(numbers, i)
    if n < 0 and not numbers.signed:
        return NO_NUMBER
    if numbers.dictionary != NULL:
        if not 0 <= n < numbers.dictionary.count:
            return NO_NUMBER
        return find_number(numbers.dictionary, n, found)
    if numbers.times > 1:
        if not -(_MOST_INT64 // numbers.times) <= n <= _MOST_INT64 // numbers.times:
            return NO_NUMBER
        n *= numbers.times
    if numbers.parts > 1:
        n = n // numbers.parts - (n % numbers.parts < 0)    # C division truncates towards 0
    found[0] = n
    return NUMBER


cdef inline Found number_up_to(const Numbers *numbers, int64_t i, int64_t most,
                               int64_t *found) noexcept nogil:
    """Look up number *i* as find_number() does; one that is not from 0 to *most* is invalid too."""
    cdef Found kind = find_number(numbers, i, found)
    return NO_NUMBER if kind == NUMBER and not 0 <= found[0] <= most else kind


cdef int64_t first_wrong(const Numbers *numbers, int64_t count, int64_t most) noexcept nogil:
    """Return the index of the first number that is neither null nor from 0 to *most*, or -1."""
    cdef int64_t i, n
    for i in range(count):
        if number_up_to(numbers, i, most, &n) == NO_NUMBER:
            return i
    return -1


cdef check_numbers(const Numbers *numbers, int64_t count, str name, int64_t most, int64_t base):
    """Raise a ValueError that names the row unless all are null or from 0 to *most*."""
    cdef int64_t i
    if count <= _FEW_NUMBERS:
        i = first_wrong(numbers, count, most)
    else:
        with nogil:
            i = first_wrong(numbers, count, most)
            want_gil()
        got_gil()
    if i >= 0:
        problem = number_problem(numbers, i, most)
        raise row_error(base + i, f"{name} {problem}", f"{name}[{base + i}] {problem}")


cdef str number_problem(const Numbers *numbers, int64_t i, int64_t most):
    """Return a description of the error in number *i*."""
    cdef object n = stored_number(numbers, i)
    if n < 0 and not numbers.signed:
        n += 1 << 64
    if numbers.dictionary == NULL:
        n = n * numbers.times // numbers.parts
        return f"must be between 0 and {most}, not {n}"
    if not 0 <= n < numbers.dictionary.count:
        return f"is index {n} of a dictionary that has {numbers.dictionary.count} entries"
    return number_problem(numbers.dictionary, n, most)


cdef row_error(int64_t row, str about, str text=None):
    """Return a ValueError with the number of the row in the call as ``row``.

    Its ``about_row`` is the text without that number.
    """
    error = of_row(row, ValueError(f"row {row}: {about}" if text is None else text))
    error.about_row = about
    return error


cdef of_row(row, error):
    """Return *error* with the number of its row in the call."""
    error.row = row
    return error
