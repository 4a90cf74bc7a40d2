"""One socket, and all that is said over it. Nothing in here has a thread of its own."""
