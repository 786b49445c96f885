"""The execution of a physical plan on Spark, stage by stage."""
