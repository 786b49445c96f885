"""Facts about columns, rows and keys as arrays: no Spark, no clock, no I/O."""
