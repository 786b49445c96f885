"""Operators that aggregate rows by groups and windows, on one bucket."""
