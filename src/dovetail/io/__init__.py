"""Sources and sinks of changes, and the formats of their records: Kafka, Delta, PostgreSQL,
files.
"""
