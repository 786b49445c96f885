"""Joins of Delta tables, kept in a Delta table that is exact at every commit."""
