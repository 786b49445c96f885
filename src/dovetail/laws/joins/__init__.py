"""The laws of joins."""
