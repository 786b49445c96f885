"""Where changes come from and go to: Kafka, Delta, files."""
