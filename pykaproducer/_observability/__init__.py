"""Observability of a producer: statistics, metrics, the statistics socket."""
