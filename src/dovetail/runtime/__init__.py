"""How a stage runs: on one bucket, on Spark's streams, on static frames."""
