# Steps of send() that are no methods: see admission.pxi.

@cython.final
cdef class Intercepted:
    """A replacement for ``on_delivery`` of a message that has been through ``_intercept()``.

    *on_delivery*: the user's callback, or None. *watcher*: called as ``watcher(handle)`` once there
    is an outcome. ``accepted``: the message is accepted, so *watcher* will be called even if
    ``send()`` is interrupted. *transaction*: the ordinal of that in which ``send()`` was called.
    """

    cdef object on_delivery, watcher
    cdef int64_t transaction
    cdef readonly bint accepted

    def __init__(self, on_delivery, watcher, int64_t transaction=0):
        self.on_delivery = on_delivery
        self.watcher = watcher
        self.transaction = transaction


cdef void look_around() noexcept:
    """Refill the memory pool and let waiting stages run. Called periodically by send()."""
    if pool_is_low():
        with nogil:
            fill_pool()
    cdef int i
    for i in range(_STAGES_A_LOOK):
        if not gil_is_wanted():
            break
        let_stages_run()


cdef inline bint append_for(Chunk chunk, const Payload *payload, const Terms *terms, int64_t now,
                            PyObject *callback, Delivery handle) noexcept:
    """Append one message to *chunk*, for *handle*. Return False if there is no memory."""
    cdef bint done
    enter_guard(&chunk.lock)
    done = append_row(chunk, payload, terms, now, callback)
    if done:
        handle.chunk = chunk
        handle.row = chunk.count - 1
        hold(&chunk.held, &chunk.rows[handle.row].handle_count, 1)
    leave_guard(&chunk.lock)
    return done
