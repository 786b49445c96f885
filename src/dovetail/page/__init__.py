"""The live page of a running query."""
