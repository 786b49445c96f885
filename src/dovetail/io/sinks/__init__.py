"""Sinks of a changelog: files, Kafka topics, Delta tables and PostgreSQL tables."""
