"""The laws of joins, windows and order, as pure functions on index arrays."""
