"""The operators by definition: slow, obvious, record by record; nothing is shared with ``src``."""
