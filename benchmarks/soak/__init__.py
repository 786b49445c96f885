"""Queries that run for long, are killed and started again: what grows, and what comes out."""
