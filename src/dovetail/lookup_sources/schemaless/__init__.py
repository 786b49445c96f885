"""Lookups in stores whose rows have no schema of their own: MongoDB and Redis."""
