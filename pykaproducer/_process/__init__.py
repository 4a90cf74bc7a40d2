"""A producer within its process: start, fork, exit, pickling, closing."""
