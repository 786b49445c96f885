"""The rows of one bucket's micro-batch, in memory or on disk."""
