"""Specifications of operators, as plain data that travels to the workers."""
