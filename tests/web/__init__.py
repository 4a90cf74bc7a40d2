"""Real web servers and pools, and how they affect a producer."""
