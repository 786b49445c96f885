"""Aggregates of groups of rows, as pure functions on Arrow columns."""
