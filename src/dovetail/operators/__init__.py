"""Operators on one bucket: each applies a law to its stores and to the rows of a micro-batch."""
