# The bytes of buffer_memory.

@cython.final
cdef class Budget:
    """The bytes of ``buffer_memory``: reserved at admission, given back as rows are reported.

    Guarantees: ``used`` never exceeds ``limit``. Whoever waits for space is woken after every
    release and looks again (waking only one loses a wake-up when that one gives up). One atomic
    number; no lock.
    """

    cdef readonly int64_t limit
    cdef int64_t reserved
    cdef public object on_release       # called after a release, when somebody waits
    cdef public bint wanted

    def __init__(self, int64_t limit):
        self.limit = limit

    @property
    def used(self):
        """Bytes that are reserved at this moment."""
        return atomic_add(&self.reserved, 0)

    def fits(self, int64_t amount):
        """Whether *amount* bytes are free at this moment."""
        return amount <= self.limit - atomic_add(&self.reserved, 0)

    cdef inline bint take(self, int64_t amount) noexcept nogil:
        return atomic_add_below(&self.reserved, amount, self.limit)

    cdef inline void give_back(self, int64_t amount) noexcept nogil:
        atomic_add(&self.reserved, -amount)

    cdef wake(self):
        if self.wanted and self.on_release is not None:
            self.on_release()
