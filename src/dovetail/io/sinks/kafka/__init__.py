"""The sink of a Kafka topic."""
