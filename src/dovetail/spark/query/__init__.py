"""Streaming queries: their start, their output, their end and their failures."""
