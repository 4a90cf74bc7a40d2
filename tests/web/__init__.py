"""Web servers and pools, for real: what they run, and what they do to a producer."""
