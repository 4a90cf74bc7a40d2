# The bytes of buffer_memory, and the threads that wait for some.

cdef extern from "Python.h":
    unsigned long PyThread_get_thread_ident() nogil


@cython.final
cdef class Turn:
    """A thread's place in the queue for bytes of a Budget.

    ``granted``: the bytes are reserved for it. *lock*: held, and released by then.
    """

    cdef readonly int64_t amount
    cdef readonly object lock
    cdef readonly bint granted
    cdef unsigned long thread


@cython.final
cdef class Budget:
    """The bytes of ``buffer_memory``: reserved at admission, given back as rows are reported.

    Guarantees: ``used`` never exceeds ``limit``. First come, first served: while a thread waits,
    others queue behind it, and what is given back is kept until the first thread's amount is
    there. No wake-up is lost: (1) a thread enters the queue, (2) serves the queue; a releaser (1)
    gives bytes back, (2) serves the queue. A thread that leaves without its bytes serves the next.

    All whose amount fits are served at once. Otherwise each of several threads that send in a loop
    would always find another one in the queue, and every message would cost a switch of threads.

    No Python code runs while the queue is changed, so neither a signal handler nor a finalizer
    meets it half changed.
    """

    cdef readonly int64_t limit
    cdef int64_t reserved
    cdef list turns                     # Turns that wait, the first one first
    cdef readonly int waiting           # how many these are: send() looks at it
    cdef Guard guard                    # of both

    def __cinit__(self):
        self.turns = []

    def __init__(self, int64_t limit):
        self.limit = limit

    @property
    def used(self):
        """Bytes that are reserved at this moment."""
        return atomic_add(&self.reserved, 0)

    def fits(self, int64_t amount):
        """Whether *amount* bytes are free at this moment."""
        return amount <= self.limit - atomic_add(&self.reserved, 0)

    def wake_all(self):
        """Wake every thread that waits: nothing more is admitted."""
        for turn in self.turns[:]:
            release_once((<Turn>turn).lock)

    cdef inline bint take(self, int64_t amount) noexcept nogil:
        """Reserve *amount* bytes, unless other threads wait for theirs."""
        return self.waiting == 0 and atomic_add_below(&self.reserved, amount, self.limit)

    cdef inline bint take_past(self, int64_t amount) noexcept nogil:
        """Reserve *amount* bytes ahead of waiting threads, for a thread that cannot wait."""
        return atomic_add_below(&self.reserved, amount, self.limit)

    cdef inline void give_back(self, int64_t amount) noexcept nogil:
        """To be followed by ``wake``."""
        atomic_add(&self.reserved, -amount)

    cdef inline int wake(self) except -1:
        """Serve the queue, after bytes have been given back."""
        if self.waiting:
            self.serve()
        return 0

    cdef Turn queue(self, int64_t amount, lock):
        """Enter the queue for *amount* bytes. ``leave`` must be called."""
        cdef Turn turn = Turn.__new__(Turn)
        cdef Py_ssize_t i
        turn.amount = amount
        turn.lock = lock
        turn.thread = PyThread_get_thread_ident()
        enter_guard(&self.guard)
        try:
            # A signal handler or a finalizer may send while its own thread waits. It goes first:
            # behind its own thread it would wait for itself.
            for i in range(len(self.turns)):
                if (<Turn>self.turns[i]).thread == turn.thread:
                    self.turns.insert(i, turn)
                    break
            else:
                self.turns.append(turn)
            self.waiting = <int>len(self.turns)
        finally:
            leave_guard(&self.guard)
        self.serve()
        return turn

    cdef int leave(self, Turn turn, bint taken) except -1:
        """Leave the queue; if *taken*, keep the bytes that were granted."""
        cdef Py_ssize_t i
        cdef bint granted
        if taken:
            return 0
        enter_guard(&self.guard)
        try:
            granted = turn.granted      # inside the guard: it may be served at this moment
            for i in range(len(self.turns)):
                if self.turns[i] is turn:
                    del self.turns[i]
                    break
            self.waiting = <int>len(self.turns)
        finally:
            leave_guard(&self.guard)
        if granted:
            self.give_back(turn.amount)
        return self.wake()

    cdef int serve(self) except -1:
        """Grant bytes to the turns at the front of the queue, as far as they go."""
        cdef Turn turn
        while True:
            enter_guard(&self.guard)
            try:
                if not self.turns or not self.take_past((<Turn>self.turns[0]).amount):
                    return 0
                turn = <Turn>self.turns[0]
                del self.turns[0]
                turn.granted = True
                self.waiting = <int>len(self.turns)
            finally:
                leave_guard(&self.guard)
            release_once(turn.lock)


cdef int release_once(lock) except -1:
    """Release *lock*, if it is held."""
    if lock.locked():
        lock.release()
    return 0
