"""Iceberg tables as targets of queries."""
