"""The engine: how rows are packed, dealt out and worked on, bucket by bucket, and in what order."""
