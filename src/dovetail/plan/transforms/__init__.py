"""Plan nodes that make a table or a stream of another one, and their checks."""
