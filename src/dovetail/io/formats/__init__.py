"""Formats of records: bytes to columns and back."""
