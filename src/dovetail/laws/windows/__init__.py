"""The laws of windows of time."""
