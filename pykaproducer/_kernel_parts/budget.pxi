# The bytes of buffer_memory, and the threads that wait for them.

cdef extern from "Python.h":
    unsigned long PyThread_get_thread_ident() nogil


#: Time without progress after which a topic has stalled (ns).
cdef int64_t _STALLED = 1000000000
#: With more topics, the bytes of stalled ones are summed up at most this often (ns).
cdef int _FEW_ACCOUNTS = 50
cdef int64_t _SUM_LASTS = 5000000


@cython.final
cdef class Account:
    """The bytes of a Budget that the messages of one topic hold."""

    cdef readonly str topic
    cdef readonly int64_t held
    # When a message was last delivered; if later, when the first of these bytes were added (ns).
    cdef int64_t progress_at

    cdef inline void add(self, int64_t amount) noexcept:
        """Count bytes that were reserved for an accepted message."""
        if atomic_add(&self.held, amount) == 0:
            store_long(&self.progress_at, kernel_clock(0))


cdef inline int64_t address_of(Account account) noexcept nogil:
    return <int64_t><Py_ssize_t><void *>account


@cython.final
cdef class Turn:
    """A thread's place in the queue for bytes of a Budget.

    ``granted``: the bytes are reserved for it. ``lock``: held by the waiting thread, and released
    when the bytes are granted. ``transaction``: the ordinal of that to which the message belongs.
    ``account``: its topic's; None: that of a new topic.
    """

    cdef readonly int64_t amount
    cdef readonly int64_t transaction
    cdef readonly object lock
    cdef readonly Account account
    cdef int is_granted
    cdef unsigned long thread

    @property
    def granted(self):
        """Return whether the bytes are reserved for it."""
        return bool(load_int(&self.is_granted))


@cython.final
cdef class Budget:
    """The bytes of ``buffer_memory``: reserved at admission, released as rows are reported.

    Guarantees: ``used`` never exceeds ``limit``. Threads are served first come, first served: while
    a thread waits, later ones queue after it, and released bytes accumulate until the first
    thread's amount is available. No wake-up is lost: a waiter (1) enters the queue, (2) serves the
    queue; a releaser (1) releases bytes, (2) serves the queue. A thread that leaves without its
    bytes serves the next one.

    All threads whose amounts fit are served at once. Otherwise each of several threads that send in
    a loop would always find another one in the queue, and every message would cost a thread switch.

    A topic that cannot be written must not take all bytes from the others. So a thread that needs
    bytes for a stalled topic is held back, and later ones are served before it, if stalled topics
    would together hold more than half of the limit and another topic progresses.

    No Python code runs while the queue is modified, so a signal handler or a finalizer never sees
    it in an intermediate state.
    """

    cdef readonly int64_t limit
    cdef int64_t reserved
    cdef list turns                     # waiting Turns, in order of arrival
    cdef int n_waiting                  # their number
    cdef int n_ahead                    # of those not held back: a send() queues after them
    cdef list accounts                  # of the topics in Admission's table
    cdef Guard guard                    # of these
    # When a message of one topic was last delivered, and one of another topic before that (ns).
    cdef int64_t progress_at, before_at
    cdef int64_t progressing            # address of the account of the first; only compared
    cdef int64_t summed_at, stalled     # see held_by_stalled()
    cdef int64_t patience, recent
    # Threads and tasks that wait for an outcome; the tasks alone; when there were several (ns).
    cdef int64_t awaited, by_tasks
    cdef int64_t crowded_at
    #: Whether messages linger, unless a thread waits alone.
    cdef public bint lingers
    cdef int64_t lacked                 # see lacking

    def __cinit__(self):
        init_guard(&self.guard)
        self.turns = []
        self.accounts = []

    def __init__(self, int64_t limit, *, int64_t patience=_STALLED, int64_t recent=_STALLED):
        self.limit = limit
        self.patience = patience
        self.recent = recent

    @property
    def used(self):
        """Return the number of bytes reserved now."""
        return atomic_add(&self.reserved, 0)

    @property
    def waiting(self):
        """Return the number of waiting threads."""
        return load_int(&self.n_waiting)

    @property
    def ahead(self):
        """Return the number of waiting threads that are not held back."""
        return load_int(&self.n_ahead)

    @property
    def lacking(self):
        """Return how many bytes must be free before messages linger again; 0: they may linger."""
        return load_long(&self.lacked)

    @lacking.setter
    def lacking(self, int64_t amount):
        store_long(&self.lacked, amount)

    @property
    def ends_lingering(self):
        """Return whether a thread waits alone for an outcome, so that no message lingers."""
        return (self.lingers and load_long(&self.awaited) == 1 and load_long(&self.by_tasks) == 0
                and was_not_crowded(self))

    def fits(self, int64_t amount):
        """Return whether *amount* bytes are free now."""
        return amount <= self.limit - atomic_add(&self.reserved, 0)

    def wake_all(self):
        """Wake every waiting thread, because nothing more is admitted."""
        cdef list turns
        enter_guard(&self.guard)
        try:
            turns = self.turns[:]
        finally:
            leave_guard(&self.guard)
        for turn in turns:
            release_once((<Turn>turn).lock)

    cpdef bint is_held_back(self, Account account, int64_t amount) except -1:
        """Return whether *account* must progress before it gets *amount* more bytes."""
        cdef int64_t now
        if account is None or load_long(&account.held) == 0:
            return False
        now = kernel_clock(0)
        if not self.has_stalled(account, now):
            return False
        # If no other one progresses, the cluster cannot be reached: all the bytes may be used.
        return (now - self.others_progress(account) <= self.recent
                and self.held_by_stalled(now) + amount > self.limit // 2)

    cdef int64_t others_progress(self, Account account) noexcept:
        if load_long(&self.progressing) == address_of(account):
            return load_long(&self.before_at)
        return load_long(&self.progress_at)

    cdef bint has_stalled(self, Account account, int64_t now) noexcept:
        # The fuller the buffer, the earlier: otherwise a fast sender fills it before that.
        cdef int64_t free = max(self.limit - atomic_add(&self.reserved, 0), 0)
        cdef double patience = self.patience * min(1.0, 2.0 * free / self.limit)
        return now - load_long(&account.progress_at) > patience

    cdef int64_t held_by_stalled(self, int64_t now) noexcept:
        """Return the bytes of stalled topics. With many topics, the sum may be some ms old."""
        cdef Account account
        cdef int64_t found = 0
        if len(self.accounts) > _FEW_ACCOUNTS and now - load_long(&self.summed_at) < _SUM_LASTS:
            return load_long(&self.stalled)
        for account in self.accounts:
            if self.has_stalled(account, now):
                found += load_long(&account.held)
        store_long(&self.stalled, found)
        store_long(&self.summed_at, now)
        return found

    cdef Account open_account(self, str topic):
        cdef Account account = Account.__new__(Account)
        account.topic = topic
        enter_guard(&self.guard)
        try:
            self.accounts.append(account)
        finally:
            leave_guard(&self.guard)
        return account

    cdef int close_account(self, Account account) except -1:
        enter_guard(&self.guard)
        try:
            if account in self.accounts:    # otherwise the process was forked
                self.accounts.remove(account)
        finally:
            leave_guard(&self.guard)
        return 0

    cdef inline bint take(self, int64_t amount, Account account) except -1:
        """Reserve *amount* bytes, unless other threads wait for theirs or *account* is held back.

        Nothing is held back before half of the limit is in use.
        """
        if load_int(&self.n_ahead):
            return False
        return (atomic_add_below(&self.reserved, amount, self.limit // 2)
                or self.take_past(amount, account))

    cdef bint take_past(self, int64_t amount, Account account) except -1:
        """Reserve *amount* bytes ahead of waiting threads, for a thread that must not wait."""
        return (not self.is_held_back(account, amount)
                and atomic_add_below(&self.reserved, amount, self.limit))

    cdef inline void progressed(self, Account account) noexcept nogil:
        """Record that messages of *account* were delivered."""
        cdef int64_t now = kernel_clock(0)
        cdef int64_t address = address_of(account)
        if load_long(&self.progressing) != address:
            store_long(&self.before_at, load_long(&self.progress_at))
            store_long(&self.progressing, address)
        store_long(&account.progress_at, now)
        store_long(&self.progress_at, now)

    cdef inline void give_back(self, int64_t amount) noexcept nogil:
        """Release *amount* bytes. The caller must call ``wake`` afterwards."""
        atomic_add(&self.reserved, -amount)

    cdef inline int wake(self) except -1:
        """Serve the queue after bytes have been released."""
        if load_int(&self.n_waiting):
            self.serve()
        return 0

    cdef Turn queue(self, int64_t amount, Account account, lock):
        """Enter the queue for *amount* bytes. The caller must call ``leave`` afterwards."""
        cdef Turn turn = Turn.__new__(Turn)
        cdef Py_ssize_t i
        turn.amount = amount
        turn.account = account
        turn.lock = lock
        turn.thread = PyThread_get_thread_ident()
        enter_guard(&self.guard)
        try:
            # A signal handler or a finalizer may send while its thread is waiting. Its turn comes
            # first: queued after the turn of the same thread, it would wait for itself.
            for i in range(len(self.turns)):
                if (<Turn>self.turns[i]).thread == turn.thread:
                    self.turns.insert(i, turn)
                    break
            else:
                self.turns.append(turn)
            store_int(&self.n_waiting, <int>len(self.turns))
        finally:
            leave_guard(&self.guard)
        self.serve()
        return turn

    cdef int leave(self, Turn turn, bint taken) except -1:
        """Leave the queue; if *taken*, keep the bytes that were granted."""
        cdef bint granted
        if taken:
            return 0
        enter_guard(&self.guard)
        try:
            granted = turn.is_granted   # read inside the guard, as another thread may serve it
            drop(self.turns, turn)
            store_int(&self.n_waiting, <int>len(self.turns))
        finally:
            leave_guard(&self.guard)
        if granted:
            self.give_back(turn.amount)
        return self.serve()

    cpdef int serve(self) except -1:
        """Grant bytes to the turns at the front of the queue while their amounts fit.

        Those that are held back are passed over. A waiting thread calls this from time to time,
        because no event marks when a topic stalls, or is no longer held back.
        """
        cdef Turn turn, first
        cdef int n_ahead
        while True:
            enter_guard(&self.guard)
            try:
                first = None
                n_ahead = 0
                for turn in self.turns:
                    if not self.is_held_back(turn.account, turn.amount):
                        first = turn if first is None else first
                        n_ahead += 1
                store_int(&self.n_ahead, n_ahead)
                if first is None or not atomic_add_below(&self.reserved, first.amount, self.limit):
                    return 0
                drop(self.turns, first)
                store_int(&first.is_granted, True)
                store_int(&self.n_waiting, <int>len(self.turns))
            finally:
                leave_guard(&self.guard)
            release_once(first.lock)
            turn = first = None         # not in the guard: see "Locks" in _kernel.pyx


cdef int release_once(lock) except -1:
    """Release *lock* if it is held."""
    if lock.locked():
        try:
            lock.release()
        except RuntimeError:
            pass                        # another thread has released it, which a GIL rules out
    return 0


#: A thread does not count as alone for this long after several threads or tasks have waited (ns):
#: of many that wait in turn, one is always the first.
cdef int64_t _CROWDED = 100000000


cdef class TaskWaiter:
    """Base class of that for which a task waits, where a thread waits for a lock.

    Those of one event *loop* are released together: ``waiter.release_with(others)``.
    """

    cdef readonly object loop

    def __init__(self, loop):
        self.loop = loop


cdef void begin_wait(Budget self, lock) noexcept:
    """Count a thread or a task that waits for an outcome. *lock*: for which it waits."""
    if atomic_add(&self.awaited, 1) > 0 and self.lingers:
        store_long(&self.crowded_at, kernel_clock(0))
    if isinstance(lock, TaskWaiter):
        atomic_add(&self.by_tasks, 1)


cdef void end_wait(Budget self, lock) noexcept:
    """Revert :func:`begin_wait`."""
    atomic_add(&self.awaited, -1)
    if isinstance(lock, TaskWaiter):
        atomic_add(&self.by_tasks, -1)


cdef bint would_wait_alone(Budget self) noexcept:
    """Return whether a thread that begins to wait now ends lingering."""
    return load_long(&self.awaited) == 0 and was_not_crowded(self)


cdef bint space_is_wanted(Budget self) noexcept:
    """Return whether lingering messages may hold bytes that a send() needs."""
    cdef int64_t lacked = load_long(&self.lacked)
    return load_int(&self.n_ahead) > 0 or (
        lacked > 0 and lacked > self.limit - atomic_add(&self.reserved, 0))


cdef bint was_not_crowded(Budget self) noexcept:
    return kernel_clock(0) - load_long(&self.crowded_at) > _CROWDED
