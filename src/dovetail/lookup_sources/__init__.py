"""Lookup sources: stores that find rows by key."""
