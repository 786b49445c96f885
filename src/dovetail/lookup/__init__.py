"""Look-up sources of delta joins: stores that are asked for rows by key."""
