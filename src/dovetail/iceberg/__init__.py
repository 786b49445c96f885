"""Iceberg tables as files: their snapshots, their rows and what has changed, without Spark."""
