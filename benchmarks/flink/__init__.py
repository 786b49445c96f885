"""Apache Flink as a peer: a process of its own Python that answers lines of JSON."""
