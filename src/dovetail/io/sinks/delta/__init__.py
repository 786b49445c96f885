"""The sink of a Delta table."""
