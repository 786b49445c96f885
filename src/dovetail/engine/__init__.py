"""The engine: how rows are packed, partitioned and worked on, bucket by bucket."""
