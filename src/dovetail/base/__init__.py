"""Names of columns, checks of arguments, and hints: modules that all others may import."""
