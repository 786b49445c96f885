"""The sink of a PostgreSQL table."""
