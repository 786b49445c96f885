"""Sources of changes: records of bytes, Kafka topics, Delta tables, Parquet changelogs."""
