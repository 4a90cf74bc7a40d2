"""Requests to coordinators from a single thread: what ``TransactionControl`` consists of."""
