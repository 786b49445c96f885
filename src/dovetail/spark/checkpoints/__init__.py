"""Checkpoints: their description, their stores, and readers of both."""
