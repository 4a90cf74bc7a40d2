"""Parts of errors: codes, hints, formatting, tracebacks, pickling."""
