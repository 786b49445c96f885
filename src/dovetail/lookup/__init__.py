"""Look-up sources: stores that find rows by key."""
