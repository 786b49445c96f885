"""Plan nodes of joins, and the checks of their arguments."""
