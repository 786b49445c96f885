"""Queries that begin with initial rows or another query's state, and moves of a checkpoint."""
