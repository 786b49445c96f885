"""The way through Spark: frames, tasks, queries and checkpoints."""
