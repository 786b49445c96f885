"""Access to Spark sessions, files and Delta tables, and their errors in our words."""
