# Who wants the GIL: a loop over send(), and Reports, let it go when a stage waits for it.
#
# A thread that wants the GIL while another one computes waits for it up to a "switch interval"
# (5 ms), and a stage wants it anew after each wait. So, beside a loop over send(), each hop of a
# batch would take 5 ms, and nearly everything would be sent after the loop has ended. A library
# must not change the interval. Instead:
#
# 1. whoever will soon want it says so: `want_gil`, when an item is put into an inbox, and at the
#    end of what is done without the GIL;
# 2. send(), and Reports between callbacks, look now and then (`_ROWS_A_LOOK`), and if somebody
#    wants it, let it go and wait until one has taken it, `_PATIENCE` at most;
# 3. whoever has it says so: `got_gil`.
#
# It is a hint, not a count that has to be right: a thread that ends, or never comes, costs one
# short wait, after which nobody wants it any more.

cdef extern from *:
    """
    #include <sched.h>

    static int32_t gil_wanted = 0;  /* threads that want the GIL, or will soon */
    static uint32_t gil_taken = 0;  /* how often one of them has got it */

    static inline void want_gil(void) {
        __atomic_fetch_add(&gil_wanted, 1, __ATOMIC_RELAXED);
    }
    static inline void got_gil(void) {
        int32_t wanted = __atomic_load_n(&gil_wanted, __ATOMIC_RELAXED);
        if (wanted > 0) __atomic_store_n(&gil_wanted, wanted - 1, __ATOMIC_RELAXED);
        __atomic_fetch_add(&gil_taken, 1, __ATOMIC_RELAXED);
    }
    static inline int gil_is_wanted(void) {
        return __atomic_load_n(&gil_wanted, __ATOMIC_RELAXED) > 0;
    }
    static void wait_until_taken(uint32_t seen, int64_t patience) {
        int64_t end = kernel_clock(0) + patience;
        while (__atomic_load_n(&gil_taken, __ATOMIC_RELAXED) == seen) {
            if (kernel_clock(0) >= end) {
                __atomic_store_n(&gil_wanted, 0, __ATOMIC_RELAXED);
                return;
            }
            sched_yield();
        }
    }
    static inline uint32_t times_taken(void) {
        return __atomic_load_n(&gil_taken, __ATOMIC_RELAXED);
    }
    """
    void want_gil() noexcept nogil
    void got_gil() noexcept nogil
    bint gil_is_wanted() noexcept nogil
    uint32_t times_taken() noexcept nogil
    void wait_until_taken(uint32_t seen, int64_t patience) noexcept nogil

#: After so many messages send() and Reports look whether a stage wants the GIL (a power of two).
cdef int64_t _ROWS_A_LOOK = 2048
#: What handles fewer bytes keeps the GIL: to get it back may take longer than the work.
cdef Py_ssize_t _SHORT_WORK = 16384
#: So many stages may run at one look of send().
cdef int _STAGES_A_LOOK = 4
#: How long they wait for it to be taken (ns).
cdef int64_t _PATIENCE = 50000


cdef void let_stages_run() noexcept:
    """Let the GIL go until a stage has taken it."""
    cdef uint32_t seen = times_taken()
    with nogil:
        wait_until_taken(seen, _PATIENCE)


def stage_wanted():
    """A stage has something to do: its thread will soon want the GIL."""
    want_gil()


def stage_runs():
    """A stage's thread, which somebody has waked, has the GIL."""
    got_gil()
