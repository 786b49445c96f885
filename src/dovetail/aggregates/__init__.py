"""What groups of rows come to, as pure functions on Arrow columns."""
