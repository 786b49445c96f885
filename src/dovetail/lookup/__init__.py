"""Look-up sources: stores that are asked for rows by key."""
