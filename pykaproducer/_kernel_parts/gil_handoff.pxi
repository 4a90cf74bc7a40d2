# GIL handoff: a loop over send(), and Reports, release the GIL when a stage is waiting for it.
#
# A thread that wants the GIL while another thread computes waits for up to one "switch interval"
# (5 ms), and a stage has to reacquire the GIL after each wait. Next to a loop over send(), each hop
# of a batch would take 5 ms, and nearly everything would be sent after the loop has ended. A
# library must not change the interval. Instead:
#
# 1. A thread that will soon need the GIL calls `want_gil`. This happens when an item is put into an
#    inbox, and at the end of a section without the GIL.
# 2. send(), and Reports between callbacks, check every `_ROWS_A_LOOK` messages. If a thread wants
#    the GIL, they release it and wait until a thread has taken it, for at most `_PATIENCE`.
# 3. The thread that has acquired the GIL calls `got_gil`.
#
# The count is a hint and need not be exact. A thread that ends, or never comes, costs one short
# wait, after which the count is reset.
#
# Without a GIL (free-threaded Python) there is nothing to hand over.

cdef extern from *:
    """
    #ifdef Py_GIL_DISABLED
    #define want_gil() ((void)0)
    #define got_gil() ((void)0)
    #define gil_is_wanted() 0
    #define times_taken() 0
    #define wait_until_taken(seen, patience) ((void)(seen), (void)(patience))
    #else
    #include <sched.h>

    static int32_t gil_wanted = 0;  /* threads that want the GIL now or soon */
    static uint32_t gil_taken = 0;  /* number of times that such a thread has acquired it */

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
    #endif
    """
    void want_gil() noexcept nogil
    void got_gil() noexcept nogil
    bint gil_is_wanted() noexcept nogil
    uint32_t times_taken() noexcept nogil
    void wait_until_taken(uint32_t seen, int64_t patience) noexcept nogil

#: send() and Reports check whether a stage wants the GIL once per this number of messages (a power
#: of two).
cdef int64_t _ROWS_A_LOOK = 2048
#: Work on fewer bytes keeps the GIL: reacquiring it may take longer than the work.
cdef Py_ssize_t _SHORT_WORK = 16384
#: Maximum number of stages that may run at one check in send().
cdef int _STAGES_A_LOOK = 4
#: Maximum time that send() and Reports wait for a thread to take the GIL (ns).
cdef int64_t _PATIENCE = 50000


cdef void let_stages_run() noexcept:
    """Release the GIL until a stage has taken it."""
    cdef uint32_t seen = times_taken()
    with nogil:
        wait_until_taken(seen, _PATIENCE)


def stage_wanted():
    """Note that a stage has work to do, so its thread will soon want the GIL."""
    want_gil()


def stage_runs():
    """Note that a stage's thread, which was woken, has acquired the GIL."""
    got_gil()
