"""Names of columns, checks of arguments, and hints."""
