"""Pure functions on Arrow columns and index arrays: no Spark, no clock, no I/O."""
