"""Utilities: the clock, random numbers and threads."""
