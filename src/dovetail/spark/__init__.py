"""Runs topologies on Spark: frames, tasks, queries and checkpoints."""
