"""Metrics of running queries: their progress, and its export."""
