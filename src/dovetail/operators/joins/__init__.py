"""Operators of joins, on one bucket."""
